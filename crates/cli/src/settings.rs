//! Settings of C libraries, which read them from the environment when a process starts.

/// The settings, and what they are worth (docs/performance.md).
///
/// - glibc keeps freed memory, because each step asks for the same tensors again. Otherwise it returns
///   large ones to the system, which hands them out anew page by page.
/// - Threads of OpenMP, which LibTorch uses, soon sleep when they wait. Otherwise they occupy their cores for
///   milliseconds, and a second process slows both down many times over.
#[cfg(unix)]
fn settings() -> Vec<(&'static str, &'static str)> {
    let mut settings = Vec::new();
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        settings.push(("MALLOC_MMAP_MAX_", "0"));
        settings.push(("MALLOC_TRIM_THRESHOLD_", "8000000000"));
    }
    let waiting = std::env::var_os("OMP_WAIT_POLICY").is_some();
    if residual_zoo_backend::BackendKind::LibTorch.is_compiled() && !waiting {
        settings.push(("GOMP_SPINCOUNT", "1000"));
    }
    settings
}

/// What is wrong with `RESIDUAL_ZOO_OPS`, which only knows `plain`.
fn unknown_ops() -> Option<String> {
    let value = std::env::var_os("RESIDUAL_ZOO_OPS")?;
    let known = value.is_empty() || value == "plain";
    (!known).then(|| {
        let value = value.to_string_lossy().escape_debug().to_string();
        format!("error: RESIDUAL_ZOO_OPS is `{value}`; set it to `plain`, or leave it out")
    })
}

/// Starts the program again, in the same process, with the settings that it runs fastest with. What the
/// user has set stays. A program calls this first of all.
///
/// There is no safe function for most of these settings, and none at all for the others. If the program
/// cannot start again, it goes on as it is. It ends if `RESIDUAL_ZOO_OPS` has a value that means nothing.
pub fn restart_with_settings() {
    if let Some(problem) = unknown_ops() {
        eprintln!("{problem}");
        std::process::exit(2);
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt as _;
        let settings = settings().into_iter();
        let unset: Vec<_> =
            (settings.filter(|(name, _)| std::env::var_os(name).is_none())).collect();
        if unset.is_empty() {
            return;
        }
        if let Ok(program) = std::env::current_exe() {
            let mut arguments = std::env::args_os();
            let mut again = std::process::Command::new(program);
            if let Some(name) = arguments.next() {
                again.arg0(name);
            }
            // `exec` returns only if it fails.
            let _ = again.args(arguments).envs(unset).exec();
        }
    }
}
