//! Blocks in stores that work, fail and lie.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Fault, FaultyStore, Operation};
use trunkline_contract::BlockKey;
use trunkline_object::remote::IfThere;
use trunkline_object::{Block, BlockShape, Location, Remote, RemoteError};

fn shape() -> BlockShape {
    BlockShape { fingerprint: "0123456789abcdef".to_owned(), block_size: 4, block_bytes: 1000 }
}

fn root() -> BlockKey {
    BlockKey::root(["tenant"].into_iter())
}

fn block(n: u32) -> Block {
    let token_ids = vec![n, n + 1, n + 2, n + 3];
    let key = root().extend(&token_ids);
    let bytes = key.as_bytes().repeat(63)[..1000].to_vec().into();
    Block { key, parent: root(), root: root(), depth: 0, token_ids, bytes }
}

/// All that holds of every store.
async fn check(remote: &Remote) {
    let (shape, block) = (shape(), block(1));
    assert_eq!(remote.get(&shape, block.key, root()).await.unwrap(), None);
    assert!(!remote.has(&shape, block.key).await.unwrap());
    assert!(remote.put(&shape, &block, IfThere::Keep).await.unwrap());
    assert!(!remote.put(&shape, &block, IfThere::Keep).await.unwrap(), "it is there");
    assert!(remote.put(&shape, &block, IfThere::Replace).await.unwrap());
    assert!(remote.has(&shape, block.key).await.unwrap());
    assert_eq!(remote.get(&shape, block.key, root()).await.unwrap(), Some(block.clone()));
    let other = BlockShape { fingerprint: "other".to_owned(), ..shape.clone() };
    assert_eq!(remote.get(&other, block.key, root()).await.unwrap(), None);
    assert!(remote.put(&shape, &self::block(2), IfThere::Keep).await.unwrap());
    let many: Vec<BlockKey> = (10..2_500).map(|n| self::block(n).key).chain([block.key]).collect();
    remote.remove(&shape, &many).await.unwrap();
    assert!(!remote.has(&shape, block.key).await.unwrap());
    assert!(remote.has(&shape, self::block(2).key).await.unwrap(), "it was not named");
    assert!(remote.put(&shape, &block, IfThere::Keep).await.unwrap());
}

#[tokio::test]
async fn blocks_come_back_from_memory_and_from_a_folder() {
    check(&Remote::new(Arc::new(FaultyStore::default()), "a/b/")).await;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/made/with its parents", folder.path().display());
    check(&Location::parse(&url).unwrap().open_folder().unwrap()).await;
    let key = block(1).key.to_string();
    let place = format!("made/with its parents/0123456789abcdef/{}/{key}", &key[..2]);
    assert!(folder.path().join(&place).is_file());
    let parent = folder.path().join(place).parent().unwrap().to_owned();
    assert_eq!(std::fs::read_dir(parent).unwrap().count(), 1, "no file of a write under way is left behind");
}

/// The folder is shared, so others know the names under which files are written.
#[tokio::test]
async fn a_folder_writes_through_no_link() {
    let folder = tempfile::tempdir().unwrap();
    let remote =
        Location::parse(&format!("file://{}", folder.path().display())).unwrap().open_folder().unwrap();
    let key = block(1).key.to_string();
    let place = folder.path().join(format!("0123456789abcdef/{}", &key[..2]));
    std::fs::create_dir_all(&place).unwrap();
    let target = folder.path().join("target");
    std::fs::write(&target, "of great value").unwrap();
    for number in 0..10_000 {
        let link = place.join(format!("{key}.tmp-{}-{number}", std::process::id()));
        std::os::unix::fs::symlink(&target, link).unwrap();
    }
    assert!(remote.put(&shape(), &block(1), IfThere::Keep).await.unwrap());
    assert!(remote.put(&shape(), &block(1), IfThere::Replace).await.unwrap());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "of great value");
    assert_eq!(remote.get(&shape(), block(1).key, root()).await.unwrap(), Some(block(1)));
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_an_error_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "a file is no folder").unwrap();
    let remote = Location::parse(&format!("file://{}", file.display())).unwrap().open_folder().unwrap();
    let error = remote.put(&shape(), &block(1), IfThere::Keep).await.unwrap_err();
    assert!(error.is_of_store(), "{error}");
    assert!(remote.get(&shape(), block(1).key, root()).await.is_err());
}

#[tokio::test]
async fn what_fails_is_said_to_be_so() {
    let store = FaultyStore::default();
    let remote = Remote::new(Arc::new(store.clone()), "");
    let block = block(1);
    for (fault, what) in [
        (Fault::Denied, "the object store refused to download a block: permission denied"),
        (Fault::Broken, "the object store failed to download a block: made up"),
    ] {
        store.set(move |_| fault);
        let error = remote.get(&shape(), block.key, root()).await.unwrap_err();
        assert_eq!(error.to_string(), what);
        assert!(error.is_of_store());
        assert!(remote.put(&shape(), &block, IfThere::Keep).await.is_err());
        let error = remote.remove(&shape(), &[block.key]).await.unwrap_err().to_string();
        assert_eq!(error, what.replace("download", "remove"));
    }
}

#[tokio::test]
async fn nobody_waits_for_ever() {
    let store = FaultyStore::default();
    store.set(|_| Fault::Hangs);
    let (get, put) = (Duration::from_millis(5), Duration::from_millis(10));
    let remote = Remote::new(Arc::new(store), "").with_timeouts(get, put);
    let error = remote.get(&shape(), block(1).key, root()).await.unwrap_err();
    assert_eq!(error.to_string(), "the object store took longer than 5 ms to download a block");
    let error = remote.put(&shape(), &block(1), IfThere::Keep).await.unwrap_err();
    assert!(matches!(error, RemoteError::Slow { limit_ms: 10, .. }), "{error}");
}

#[tokio::test]
async fn with_seeded_faults_no_wrong_block_is_ever_given() {
    for seed in 1..40_u64 {
        let store = FaultyStore::default();
        let remote = Remote::new(Arc::new(store.clone()), "p/");
        let mut random = seed;
        let mut next = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize
        };
        let mut fault = next;
        store.set(move |operation| match (operation, fault() % 6) {
            (_, 0) => Fault::Broken,
            (_, 1) => Fault::Denied,
            (Operation::Get, 2) => Fault::Cut(fault() % 1300),
            (Operation::Get, 3) => Fault::Flipped(fault()),
            _ => Fault::None,
        });
        let mut is_there = [false; 8];
        for _ in 0..200 {
            let n = next() % 8;
            let block = block(n as u32 * 10);
            if next() % 2 == 0 {
                let put = remote.put(&shape(), &block, IfThere::Keep).await;
                is_there[n] |= put.is_ok();
            } else {
                match remote.get(&shape(), block.key, root()).await {
                    Ok(Some(got)) => assert_eq!(got, block, "seed {seed}"),
                    Ok(None) => assert!(!is_there[n], "seed {seed}: a block that was taken is there"),
                    Err(error) => assert!(is_there[n] || error.is_of_store(), "seed {seed}: {error}"),
                }
            }
        }
        assert!(is_there.contains(&true));
    }
}

#[tokio::test]
async fn an_object_of_another_size_is_refused_and_replaced() {
    let store = FaultyStore::default();
    let remote = Remote::new(Arc::new(store.clone()), "");
    let block = block(1);
    let garbage = vec![0; 5_000_000].into();
    store.objects.lock().unwrap().insert(remote.name(&shape(), block.key), garbage);
    let error = remote.get(&shape(), block.key, root()).await.unwrap_err().to_string();
    assert!(error.ends_with("cannot be used: the object has 5000000 bytes, expected 1188"), "{error}");
    assert!(remote.put(&shape(), &block, IfThere::Replace).await.unwrap());
    assert_eq!(remote.get(&shape(), block.key, root()).await.unwrap(), Some(block));
}
