//! `seeds TARGET CORPUS DICTIONARY` writes each seed of a target to a file in the folder CORPUS, and the target's words
//! to the file DICTIONARY in libFuzzer's format.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use trunkline_fuzz::seeds::write;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let written = match arguments.as_slice() {
        [name, corpus, dictionary] => write(name, Path::new(corpus), Path::new(dictionary)),
        _ => Err("expected TARGET CORPUS DICTIONARY".to_owned()),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A failure to write to stderr cannot be reported.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(2)
        }
    }
}
