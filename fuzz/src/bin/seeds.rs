//! Writes what a target's fuzzer begins with: `seeds TARGET CORPUS DICTIONARY` puts each seed into a file of the folder
//! CORPUS, and the target's words into DICTIONARY, in libFuzzer's form.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use trunkline_fuzz::{TARGETS, Target};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let written = match arguments.as_slice() {
        [name, corpus, dictionary] => write(name, Path::new(corpus), Path::new(dictionary)),
        _ => Err("expected TARGET CORPUS DICTIONARY".to_owned()),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if stderr is gone.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(2)
        }
    }
}

fn write(name: &str, corpus: &Path, dictionary: &Path) -> Result<(), String> {
    let target: &Target = TARGETS.iter().find(|target| target.name == name).ok_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        format!("target {name:?} is none of {names:?}")
    })?;
    std::fs::create_dir_all(corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        let file = corpus.join(format!("seed-{number:02}"));
        std::fs::write(&file, seed).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let words: String = (target.words)().iter().map(|word| entry(word.as_bytes())).collect();
    std::fs::write(dictionary, words).map_err(|error| format!("{}: {error}", dictionary.display()))
}

/// A line of a dictionary: bytes that are no printable ASCII, quotes and backslashes are escaped.
/// <https://llvm.org/docs/LibFuzzer.html#dictionaries>
fn entry(word: &[u8]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_seeds_and_its_words_are_escaped() {
        let folder = tempfile::tempdir().unwrap();
        for target in TARGETS {
            let (corpus, dictionary) = (folder.path().join(target.name), folder.path().join("words"));
            write(target.name, &corpus, &dictionary).unwrap();
            assert_eq!(std::fs::read_dir(corpus).unwrap().count(), (target.seeds)().len(), "{}", target.name);
            assert!(!(target.seeds)().is_empty(), "{}", target.name);
            let lines = std::fs::read_to_string(dictionary).unwrap().lines().count();
            assert_eq!(lines, (target.words)().len(), "{}", target.name);
        }
        assert_eq!(entry(b"a\"\\\r\n\xff"), "\"a\\\"\\\\\\x0D\\x0A\\xFF\"\n");
        assert!(write("nothing", folder.path(), folder.path()).unwrap_err().contains("\"body\""));
    }
}
