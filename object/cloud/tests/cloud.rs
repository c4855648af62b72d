//! Blocks in a store that speaks S3's protocol.

#![allow(clippy::unwrap_used)]

use trunkline_contract::BlockKey;
use trunkline_object::remote::IfThere;
use trunkline_object::{Block, BlockShape, Location};
use trunkline_object_cloud::open;

fn shape() -> BlockShape {
    BlockShape { fingerprint: "0123456789abcdef".to_owned(), block_size: 4, block_bytes: 1000 }
}

fn block() -> Block {
    let root = BlockKey::root(["tenant"].into_iter());
    let token_ids = vec![1, 2, 3, 4];
    Block {
        key: root.extend(&token_ids),
        parent: root,
        root,
        depth: 0,
        token_ids,
        bytes: vec![7; 1000].into(),
    }
}

#[test]
fn a_store_is_opened_without_a_request() {
    for url in ["s3://bucket/prefix", "gs://bucket/prefix"] {
        let opened = open(&Location::parse(url).unwrap());
        // What the environment of this machine lacks is named; nothing else may fail before the first use.
        let problem = opened.err().map(|error| error.to_string());
        assert!(
            problem.as_ref().is_none_or(|text| text.starts_with("cannot be used: ")),
            "{url}: {problem:?}"
        );
    }
}

/// `make test-s3` starts a server, says where it is by the variables that people use, and runs this.
#[tokio::test]
#[ignore = "needs an S3 server: make test-s3"]
async fn blocks_come_back_from_s3() {
    let remote = open(&Location::parse(&std::env::var("TRUNKLINE_TEST_S3_URL").unwrap()).unwrap()).unwrap();
    let (shape, block) = (shape(), block());
    assert_eq!(remote.get(&shape, block.key, block.root).await.unwrap(), None);
    assert!(!remote.has(&shape, block.key).await.unwrap());
    assert!(remote.put(&shape, &block, IfThere::Keep).await.unwrap());
    assert!(!remote.put(&shape, &block, IfThere::Keep).await.unwrap(), "it is there");
    assert!(remote.put(&shape, &block, IfThere::Replace).await.unwrap());
    assert!(remote.has(&shape, block.key).await.unwrap());
    assert_eq!(remote.get(&shape, block.key, block.root).await.unwrap(), Some(block.clone()));
    remote.remove(&shape, &[block.key, block.root]).await.unwrap();
    assert!(!remote.has(&shape, block.key).await.unwrap());
    let missing = open(&Location::parse("s3://no-such-bucket-there/x").unwrap()).unwrap();
    assert!(missing.put(&shape, &block, IfThere::Keep).await.is_err());
}
