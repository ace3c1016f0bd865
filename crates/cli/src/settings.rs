//! Settings of C libraries, which read them from the environment when a process starts.

use residual_zoo_system::console::warn;

/// Returns the settings as names and values of environment variables. docs/performance.md describes their effects.
///
/// - glibc keeps freed memory, because each step asks for the same tensors again. Otherwise, glibc would return large
///   tensors to the system, which would provide their memory anew, page by page.
/// - OpenMP threads, which LibTorch uses, sleep soon when they wait. Otherwise, they would occupy their cores for
///   milliseconds, and two processes would slow each other down many times over.
fn settings() -> Vec<(&'static str, &'static str)> {
    let mut settings = Vec::new();
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        settings.push(("MALLOC_MMAP_MAX_", "0"));
        settings.push(("MALLOC_TRIM_THRESHOLD_", "8000000000"));
    }
    let waiting = std::env::var_os("OMP_WAIT_POLICY").is_some();
    if cfg!(unix) && residual_zoo_backend::BackendKind::LibTorch.is_compiled() && !waiting {
        settings.push(("GOMP_SPINCOUNT", "1000"));
    }
    settings
}

/// Returns the problem with `RESIDUAL_ZOO_OPS`, which only allows `plain`, and `cuda` for tests.
fn unknown_ops() -> Option<String> {
    let value = std::env::var_os("RESIDUAL_ZOO_OPS")?;
    let known = value.is_empty() || value == "plain" || value == "cuda";
    (!known).then(|| {
        let value = value.to_string_lossy().escape_debug().to_string();
        format!("error: RESIDUAL_ZOO_OPS is `{value}`; set it to `plain`, or leave it out")
    })
}

/// Prepares this process. A program must call this first.
///
/// The program starts again, in the same process, with the settings that make it fastest. The user's own settings are
/// kept. A restart is needed because most of these settings cannot be changed by a safe function of a running program,
/// and some by no function at all. If the program cannot start again, it continues as it is. The program ends if
/// `RESIDUAL_ZOO_OPS` has an unknown value.
pub fn start() {
    if let Some(problem) = unknown_ops() {
        warn(&problem);
        std::process::exit(2);
    }
    let mut unset = settings();
    unset.retain(|(name, _)| std::env::var_os(name).is_none());
    if !unset.is_empty() {
        residual_zoo_system::process::restart(unset);
    }
    residual_zoo_system::signals::large_files_are_errors();
}
