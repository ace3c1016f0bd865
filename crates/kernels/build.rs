//! Compiles bindings for LibTorch functions that the crate `tch` lacks, and the code that launches this crate's CUDA
//! kernels.

use std::path::Path;

/// The minor versions of PyTorch 2 that this crate was built and tested with.
const TESTED: std::ops::RangeInclusive<u32> = 9..=11;

/// Warns about untested PyTorch versions. The check of `torch-sys` allows only one version, and `.cargo/config.toml`
/// turns this check off.
fn warn_of_version(include: &Path) {
    let text = std::fs::read_to_string(include.join("torch/version.h")).unwrap_or_default();
    let number = |name: &str| {
        let line = text.lines().find_map(|line| {
            line.strip_prefix("#define TORCH_VERSION_")?
                .strip_prefix(name)
        });
        line.and_then(|number| number.trim().parse::<u32>().ok())
    };
    if let (Some(major), Some(minor)) = (number("MAJOR"), number("MINOR"))
        && (major != 2 || !TESTED.contains(&minor))
    {
        println!(
            "cargo:warning=this is PyTorch {major}.{minor}; only 2.{} to 2.{} were tested",
            TESTED.start(),
            TESTED.end()
        );
    }
}

fn main() {
    println!("cargo:rerun-if-changed=src/libtorch.cpp");
    println!("cargo:rerun-if-changed=src/cuda");
    println!("cargo:rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    if std::env::var_os("CARGO_FEATURE_TCH").is_none() {
        return;
    }
    // `torch-sys` gives the library directory. The header directory is beside it.
    let lib =
        std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names the directory of libtorch");
    let include = Path::new(&lib).join("../include");
    warn_of_version(&include);
    cc::Build::new()
        .cpp(true)
        .pic(true)
        .warnings(false)
        .flag_if_supported("-std=c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .file("src/libtorch.cpp")
        .file("src/cuda/launch.cpp")
        .file("src/cuda/emulated.cpp")
        .compile("residual-zoo-libtorch");
}
