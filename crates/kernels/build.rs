//! Compiles the functions of LibTorch that the crate `tch` has no binding for.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=src/libtorch.cpp");
    println!("cargo:rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    if std::env::var_os("CARGO_FEATURE_TCH").is_none() {
        return;
    }
    // `torch-sys` says where the libraries are. The headers are beside them.
    let lib =
        std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names the directory of libtorch");
    let include = Path::new(&lib).join("../include");
    cc::Build::new()
        .cpp(true)
        .pic(true)
        .warnings(false)
        .flag_if_supported("-std=c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .file("src/libtorch.cpp")
        .compile("residual-zoo-libtorch");
}
