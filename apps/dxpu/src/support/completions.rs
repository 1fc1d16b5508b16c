//! `dxpu completions`: completions for a shell.

use crate::support::exit::{Exit, Outcome};

#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    /// `dxpu` is the whole command line.
    pub(crate) fn run(self, dxpu: &mut clap::Command) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, dxpu, "dxpu", &mut script);
        script.extend_from_slice(live_names(self.shell).as_bytes());
        crate::support::out::write_bytes(&script);
        Ok(Exit::Success)
    }
}

/// What completes names of leases, GPUs, boxes, hosts and tenants by asking the pool. Only bash's script is short enough to
/// be extended: its function is wrapped by one that asks first.
fn live_names(shell: clap_complete::Shell) -> &'static str {
    match shell {
        clap_complete::Shell::Bash => BASH,
        _ => "",
    }
}

const BASH: &str = r#"
# Names of the pool after `dxpu NOUN VERB`: asked of the manager, and left out when it does not answer.
_dxpu_names() {
    local current="${COMP_WORDS[COMP_CWORD]}" noun="${COMP_WORDS[1]}"
    if [[ $COMP_CWORD -ge 3 && $current != -* && $noun =~ ^(lease|gpu|box|host|tenant)$ ]]; then
        local names
        names=$(dxpu "$noun" ls -o name 2>/dev/null) || names=
        COMPREPLY=($(compgen -W "$names" -- "$current"))
        [[ ${#COMPREPLY[@]} -gt 0 ]] && return
    fi
    _dxpu "$@"
}
complete -F _dxpu_names -o nosort -o bashdefault -o default dxpu
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn bash_completes_names_of_the_pool_with_a_command_that_exists() {
        let mut script = Vec::new();
        let mut dxpu = crate::cli::Cli::command();
        clap_complete::generate(clap_complete::Shell::Bash, &mut dxpu, "dxpu", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("_dxpu()"), "the function that ours falls back to");
        for noun in ["lease", "gpu", "box", "host", "tenant"] {
            assert!(
                crate::cli::Cli::command().try_get_matches_from(["dxpu", noun, "ls", "-o", "name"]).is_ok()
            );
        }
        assert_eq!(live_names(clap_complete::Shell::Zsh), "");
    }
}
