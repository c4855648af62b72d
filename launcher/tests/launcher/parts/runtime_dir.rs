use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use trunkline_launcher::child::ShardId;
use trunkline_launcher::log::Log;
use trunkline_launcher::runtime_dir::{LOCK_FILE, RuntimeDir, check_socket_path, owner_in_name, sweep};
use trunkline_settings::{LogFormat, LogLevel, ServeSettings};

fn quiet() -> Log {
    Log::new(LogFormat::Text, LogLevel::Error)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn folder_is_private_and_goes_with_its_owner() {
    let base = tempfile::tempdir().unwrap();
    let dir = RuntimeDir::create(&[base.path().into()], &quiet()).unwrap();
    let path = dir.path().to_owned();
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&path.join(LOCK_FILE)), 0o600);
    fs::write(dir.socket(ShardId::default(), 0), "").unwrap();
    drop(dir);
    assert!(!path.exists());
}

#[test]
fn sweep_takes_the_dead_and_leaves_the_living_and_the_foreign() {
    let base = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let path = base.path().join(name);
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    };
    let living = RuntimeDir::create(&[base.path().into()], &quiet()).unwrap();
    let parent = std::os::unix::process::parent_id();
    // The file was locked once, so the folder is stale although another process now has the id in its name.
    let reused = make(&format!("trunkline-{parent}-0000000a"));
    fs::write(reused.join(LOCK_FILE), format!("{parent}\n")).unwrap();
    // The file is not locked yet, but its owner may be about to lock it.
    let young = make(&format!("trunkline-{parent}-0000000b"));
    let younger = make(&format!("trunkline-{parent}-0000000c"));
    fs::write(younger.join(LOCK_FILE), "").unwrap();
    // The owner died before it could lock the file: no process has an id above the kernel's limit of 2^22.
    let dead = make("trunkline-2147483647-0000000d");
    let foreign = make("trunkline-notes");
    let open_to_all = make("trunkline-2147483647-0000000e");
    fs::set_permissions(&open_to_all, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let link = base.path().join("trunkline-2147483647-0000000f");
    std::os::unix::fs::symlink(&foreign, &link).unwrap();

    sweep(base.path(), &quiet());

    assert!(living.path().exists() && young.exists() && younger.exists() && foreign.exists());
    assert!(open_to_all.exists() && fs::symlink_metadata(&link).is_ok());
    assert!(!reused.exists() && !dead.exists());
}

#[test]
fn settings_are_written_to_the_private_folder_only() {
    let base = tempfile::tempdir().unwrap();
    let settings = ServeSettings::new("/s".into(), "/m".into(), "n".into());
    let dir = RuntimeDir::create(&[base.path().into()], &quiet()).unwrap();
    dir.write_settings(0, 0, &settings).unwrap();
    let target = base.path().join("target");
    fs::write(&target, "of great value").unwrap();
    let read = || fs::read_to_string(dir.path().join("settings.json")).unwrap();
    let written = read();
    std::os::unix::fs::symlink(&target, dir.path().join("settings.new")).unwrap();
    dir.write_settings(0, 0, &settings).unwrap_err();
    assert_eq!(read(), written);
    assert_eq!(fs::read_to_string(&target).unwrap(), "of great value");
    dir.check().unwrap();

    // Something that cleans temporary folders removes it, and another user makes one of the same name.
    fs::remove_dir_all(dir.path()).unwrap();
    DirBuilder::new().mode(0o777).create(dir.path()).unwrap();
    let reason = dir.write_settings(0, 0, &settings).unwrap_err().to_string();
    assert!(reason.contains("is no longer this launcher's private folder"), "{reason}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(dir.check().unwrap_err().to_string(), reason);
}

#[test]
fn too_long_a_base_is_passed_over_for_the_next() {
    let base = tempfile::tempdir().unwrap();
    let long = base.path().join("x".repeat(100));
    fs::create_dir(&long).unwrap();
    let dir = RuntimeDir::create(&[long.clone(), base.path().into()], &quiet()).unwrap();
    assert_eq!(dir.path().parent(), Some(base.path()));
    let error = RuntimeDir::create(std::slice::from_ref(&long), &quiet()).unwrap_err().to_string();
    assert!(error.contains("the limit is 107"), "{error}");
    assert_eq!(fs::read_dir(&long).unwrap().count(), 0);
}

#[test]
fn socket_path_limit_is_exact() {
    let path = |bytes: usize| PathBuf::from(format!("/{}", "x".repeat(bytes - 1)));
    assert!(check_socket_path(&path(107)).is_ok());
    assert!(check_socket_path(&path(108)).is_err());
}

#[test]
fn names_are_read_strictly() {
    assert_eq!(owner_in_name("trunkline-12-0123abcd"), Some(12));
    for name in [
        "trunkline-12",
        "trunkline-0-0123abcd",
        "trunkline-12-0123abc",
        "trunkline--1-0123abcd",
        "x-12-0123abcd",
    ] {
        assert_eq!(owner_in_name(name), None, "{name}");
    }
}
