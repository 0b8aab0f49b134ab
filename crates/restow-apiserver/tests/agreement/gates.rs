//! Features that are turned off and on again.

use crate::fixture::*;

#[tokio::test]
async fn feature_gates_can_be_turned_off_and_on_without_losing_objects() {
    let store = store();
    for (round, gates) in ["StorageVersionAPI=false", "", "APIServerIdentity=false"].iter().enumerate() {
        let server = start(&store, "a", "1.30", gates).await;
        write_slice(&server, &format!("round-{round}")).await.unwrap();
        let reported = !objects(&store, STORAGE_VERSIONS).await.is_empty();
        assert_eq!(
            reported,
            round == 1,
            "a server reports nothing while its gate is closed, and withdraws what it did"
        );
        server.leave().await;
    }
    assert_eq!(objects(&store, "/discovery.k8s.io/endpointslices/").await.len(), 3);
}
