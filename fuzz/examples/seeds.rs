//! Writes what a target's fuzzer begins with: `seeds TARGET CORPUS DICTIONARY` puts each seed into a file of the folder
//! CORPUS, and the target's words into DICTIONARY, in libFuzzer's form.

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
            // Nobody is left to tell if stderr is gone.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(2)
        }
    }
}
