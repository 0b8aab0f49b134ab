//! The messages and clients generated from `proto/etcd.proto`. Nothing is written by hand here.

#![allow(missing_docs, unreachable_pub, clippy::all)]

tonic::include_proto!("etcdserverpb");
