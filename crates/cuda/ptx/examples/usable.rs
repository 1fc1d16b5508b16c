//! Says of each kernel in some PTX files whether the engine runs it, and why not.
//!
//! ```text
//! cargo run -p ptx --example usable -- kernels.ptx …
//! ```

use ptx::{Module, Program, link};

fn main() {
    let mut refused = 0;
    for path in std::env::args().skip(1) {
        let text = std::fs::read(&path).expect("a readable file");
        let module = match Module::parse(&text) {
            Ok(module) => module,
            Err(error) => {
                println!("{path}: {error}");
                refused += 1;
                continue;
            }
        };
        let linked = match link(vec![module]) {
            Ok(linked) => linked,
            Err(error) => {
                println!("{path}: {error}");
                refused += 1;
                continue;
            }
        };
        let mut next = 1 << 40;
        let program = Program::bind(linked, |variable| {
            let address = u64::next_multiple_of(next, u64::from(variable.align).max(256));
            next = address + variable.size;
            address
        });
        for name in program.kernel_names() {
            match program.kernel(name) {
                Some(Ok(info)) => println!(
                    "{path}: {name}: {} parameter bytes, {} shared, {} local, {} registers",
                    info.param_bytes, info.static_shared, info.local_bytes, info.registers
                ),
                Some(Err(error)) => {
                    println!("{path}: {name}: refused: {error}");
                    refused += 1;
                }
                None => unreachable!("the name came from the program"),
            }
        }
    }
    println!("{refused} refused");
}
