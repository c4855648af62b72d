//! Seeds and dictionaries for libFuzzer.

use std::path::Path;

use crate::TARGETS;

/// Writes each seed of a target to a file in the folder `corpus`, and its words to the file `dictionary`.
pub fn write(name: &str, corpus: &Path, dictionary: &Path) -> Result<(), String> {
    let target = TARGETS.iter().find(|target| target.name == name).ok_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        format!("target is {name:?}, must be one of {names:?}")
    })?;
    std::fs::create_dir_all(corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        let file = corpus.join(format!("seed-{number:02}"));
        std::fs::write(&file, seed).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let words: String = (target.words)().iter().map(|word| entry(word.as_bytes())).collect();
    std::fs::write(dictionary, words).map_err(|error| format!("{}: {error}", dictionary.display()))
}

/// Returns a line of a dictionary, with quotes, backslashes and bytes other than printable ASCII escaped.
/// <https://llvm.org/docs/LibFuzzer.html#dictionaries>
pub fn entry(word: &[u8]) -> String {
    let escaped: String = word
        .iter()
        .map(|&byte| match byte {
            b'"' | b'\\' => format!("\\{}", char::from(byte)),
            b' '..=b'~' => char::from(byte).to_string(),
            _ => format!("\\x{byte:02X}"),
        })
        .collect();
    format!("\"{escaped}\"\n")
}
