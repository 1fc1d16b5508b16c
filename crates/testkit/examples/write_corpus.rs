//! Writes the seeds that are missing in `fuzz/corpus`. A file that is there and differs is never changed: its name is
//! printed and the run fails, since golden files are the wire format and others may be what a fuzzer found.

use std::{fs, process::ExitCode};
use testkit::{corpus, samples};

fn main() -> std::io::Result<ExitCode> {
    let (mut written, mut kept, mut different) = (0, 0, 0);
    for seed in [samples::golden(), samples::hostile()].concat() {
        let folder = corpus::folder(seed.target);
        let path = folder.join(&seed.name);
        match fs::read(&path) {
            Ok(bytes) if bytes == seed.bytes => kept += 1,
            Ok(_) => {
                different += 1;
                println!("differs, left as it is: {}/{}", seed.target, seed.name);
            }
            Err(_) => {
                fs::create_dir_all(&folder)?;
                fs::write(&path, &seed.bytes)?;
                written += 1;
            }
        }
    }
    println!("{written} written, {kept} kept, {different} different");
    Ok(if different == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
