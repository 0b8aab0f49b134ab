//! Finds objects stored in an old version and rewrites them, on any Kubernetes.
