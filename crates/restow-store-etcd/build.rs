//! Compiles `proto/etcd.proto` without `protoc`, so that a Rust toolchain alone can build this crate.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/etcd.proto");
    let descriptors = protox::compile(["proto/etcd.proto"], ["proto"])?;
    // Requests carry reference-counted bytes, so that repeating one copies nothing. Responses keep vectors: an entry
    // must not hold on to the whole message that it arrived in.
    let mut builder = tonic_prost_build::configure().build_server(false);
    for request in ["RangeRequest", "PutRequest", "DeleteRangeRequest", "Compare", "WatchCreateRequest"] {
        builder = builder.bytes(format!(".etcdserverpb.{request}"));
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
