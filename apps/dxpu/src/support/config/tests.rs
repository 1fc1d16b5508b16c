use super::*;
use crate::cli;
use std::collections::BTreeSet;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn settled(role: &str, config: &str, more: &[&str]) -> anyhow::Result<Result<Settled, Told>> {
    let file = file(config);
    let mut words: Vec<OsString> = ["dxpu", role, "--config"].map(OsString::from).to_vec();
    words.push(file.path().into());
    words.extend(more.iter().map(OsString::from));
    try_settle(&cli::command(), words)
}

fn refused(role: &str, config: &str) -> String {
    let error = settled(role, config, &[]).unwrap_err();
    format!("{error} | {}", error.downcast_ref::<Failure>().unwrap().hint)
}

fn matches(role: &str, config: &str, more: &[&str]) -> ArgMatches {
    match settled(role, config, more).unwrap() {
        Ok(Settled::Run(matches)) => matches.subcommand_matches(role).unwrap().clone(),
        other => panic!("{other:?}"),
    }
}

fn shown(role: &str, config: &str, more: &[&str]) -> String {
    match settled(role, config, &[more, &["--print-config"]].concat()).unwrap() {
        Ok(Settled::Show(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn raw(matches: &ArgMatches, id: &str) -> Vec<String> {
    matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned()).collect()
}

/// The keys of a file, also of lines behind `#`.
fn keys(text: &str) -> BTreeSet<String> {
    let line = |line: &str| {
        let (key, _) = line.trim_start_matches("# ").split_once(" = ")?;
        key.chars().all(|c| c.is_ascii_lowercase() || c == '-').then(|| key.to_owned())
    };
    text.lines().filter_map(line).collect()
}

/// A value that each option takes, by what it is for.
fn example(role: &str, key: &str) -> &'static str {
    match (role, key) {
        ("manager" | "functions", "listen") | ("functions", "metrics") => "'127.0.0.1:0'",
        ("worker", "listen") => "['0.0.0.0:7400', 'unix:/tmp/w']",
        ("manager" | "functions", "store") => "'sqlite:/tmp/pool.db'",
        (_, "leader-ttl" | "report-every" | "suspect-after" | "dead-after" | "reclaim-after" | "spin") => {
            "'5s'"
        }
        (_, "guest-waits" | "stall-timeout" | "guard-disk-after" | "fault-wait-max") => "'5s'",
        (_, "offline-slice") => "'100us'",
        ("functions", "keep-warm" | "retry-after" | "gpu-keep" | "balance-after") => "'5s'",
        ("functions", "survive") => "'tight,careful'",
        (_, "soft" | "slots" | "port" | "devices" | "sessions") => "3",
        ("functions", "instances" | "tenant-instances" | "gpus" | "sharing") => "3",
        ("functions", "fit") => "'worst'",
        (_, "guests") => "1",
        (_, "slack") => "10",
        (_, "shares") => "4",
        (_, "guests-of") => "'any'",
        ("box", "merged" | "overcommit") => "'true'",
        (_, "kind") => "'pcie'",
        (_, "name" | "model") => "'a'",
        (_, "driver") => "'nvidia'",
        (_, "memory" | "host-memory" | "guard-memory" | "guest-memory" | "content-memory") => "'8GiB'",
        (_, "guard-port") => "7",
        (_, "guard-copy-to") => "'tls:box-2:7402/box-2'",
        (_, "compute-capability") => "'9.0'",
        (_, "modules-ahead") => "'true'",
        (_, "fabric") => "['10.0.0.7:7600']",
        (_, "device") => "['dma']",
        (_, "manager") => "['https://a:1', 'https://b:1']",
        (_, "accept-older-store" | "msix" | "plain" | "nvidia" | "merged") => "true",
        ("functions", "same-user" | "share-between-tenants") => "true",
        _ => "'/a'",
    }
}

/// Options that another one may not do without.
fn partners(role: &str, key: &str) -> &'static str {
    match (role, key) {
        (_, "etcd-certificate") => "\netcd-key = '/k'\netcd-ca = '/c'",
        (_, "etcd-key") => "\netcd-certificate = '/k'\netcd-ca = '/c'",
        (_, "tls-cert") => "\ntls-key = '/k'",
        (_, "tls-key") => "\ntls-cert = '/k'",
        (_, "guard-disk-after") => "\nguard-memory = '8GiB'\nguard-disk = '/d'",
        (_, "guard-disk" | "guard-port" | "guard-copy-to") => "\nguard-memory = '8GiB'",
        ("box", "spin" | "device") => "\nfabric = '10.0.0.7:7600'",
        _ => "",
    }
}

#[test]
fn every_option_of_every_role_is_a_key_of_its_file() {
    let dxpu = cli::command();
    for role in ROLES {
        let command = dxpu.find_subcommand(role).unwrap();
        // Straight from clap's definition, without the filter that the files use.
        let named: BTreeSet<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
        let apart = [
            "config",
            "print-config",
            "help",
            "version",
            "by-lease",
            "soft-identity",
            "guardian",
            "page",
            "mps-folder",
        ];
        let wanted: BTreeSet<String> =
            named.into_iter().filter(|long| !apart.contains(long)).map(str::to_owned).collect();
        assert_eq!(keys(&shown(role, "", &[])), wanted, "{role} prints them all");
        for key in &wanted {
            let line = format!("{key} = {}{}", example(role, key), partners(role, key));
            let text = shown(role, &line, &[]);
            assert!(text.lines().any(|line| line.starts_with(&format!("{key} = "))), "{role} {line}: {text}");
        }
    }
}

#[test]
fn the_command_line_counts_first_then_the_environment_then_the_file() {
    let found =
        matches("manager", "listen = '10.0.0.1:7500'\nname = 'm1'\ndead-after = '30s'", &["--name", "m2"]);
    assert_eq!(raw(&found, "name"), ["m2"]);
    assert_eq!(raw(&found, "listen"), ["10.0.0.1:7500"]);
    assert_eq!(raw(&found, "dead_after"), ["30s"]);
    assert_eq!(raw(&found, "suspect_after"), ["3s"], "a default");
    // Environments of processes: tests/packages has the one that decides. Here, the option that has a variable.
    let dxpu = cli::command();
    let variable = |role: &str| {
        let mut arguments = dxpu.find_subcommand(role).unwrap().get_arguments();
        arguments.find(|arg| arg.get_long() == Some("manager")).unwrap().get_env().unwrap().to_owned()
    };
    assert_eq!(variable("box"), "DXPU_MANAGER");
}

#[test]
fn lists_switches_and_what_is_required_may_come_from_the_file() {
    let found = matches("host", "fabric = ['10.0.0.7:7600', '10.1.0.7:7600']\nmsix = true\nslots = 8", &[]);
    assert_eq!(raw(&found, "fabric"), ["10.0.0.7:7600", "10.1.0.7:7600"]);
    assert!(found.get_flag("msix"));
    assert!(!matches("host", "msix = true", &["--msix=false"]).get_flag("msix"));
    assert!(!matches("host", "msix = false", &[]).get_flag("msix"));
    let found = matches("worker", "listen = 'unix:/tmp/w'", &[]);
    assert_eq!(raw(&found, "listen"), ["unix:/tmp/w"]);
    assert!(settled("worker", "", &[]).unwrap().is_err(), "a worker listens somewhere");
}

#[test]
fn what_a_file_says_is_checked_like_the_command_line_and_the_file_is_named() {
    let wrong = settled("box", "soft = 100", &[]).unwrap().unwrap_err();
    assert!(wrong.error.to_string().contains("100 is not in 1..=64"), "{}", wrong.error);
    assert!(wrong.note.ends_with("sets soft"), "{}", wrong.note);
    let wrong = settled("box", "soft = 1\nsimulate = 'plan.json'", &[]).unwrap().unwrap_err();
    assert!(wrong.error.to_string().contains("cannot be used with"), "{}", wrong.error);
    assert!(settled("box", "spin = '5us'", &[]).unwrap().is_err(), "it requires fabric");
}

#[test]
fn a_key_that_is_none_is_refused_with_the_nearest_one() {
    assert!(
        refused("box", "state_dir = '/a'").ends_with("no setting named state_dir | did you mean state-dir?")
    );
    assert!(refused("manager", "dead-aftr = '5s'").ends_with("| did you mean dead-after?"));
    assert!(refused("manager", "wallpaper = 'blue'").contains("`dxpu manager --print-config` prints all"));
    for hidden in ["by-lease = '/a'", "config = '/a'", "help = true"] {
        assert!(refused("worker", hidden).contains("there is no setting named"), "{hidden}");
    }
    assert!(
        refused("worker", "compute-capability = 9.0")
            .contains("write it in quotes: compute-capability = \"9.0\"")
    );
    assert!(refused("host", "msix = 'yes'").contains("msix is a switch"));
    assert!(refused("host", "slots 4").contains("write it as TOML"));
}

#[test]
fn what_is_printed_is_a_file_that_says_the_same() {
    for role in ROLES {
        let set = match role {
            "manager" => {
                "listen = '0.0.0.0:7500'\nstore = 'etcd:http://e1:2379,http://e2:2379'\naccept-older-store = true"
            }
            "functions" => "listen = '127.0.0.1:9701'\nfit = 'worst'\nsame-user = true\nkeep-warm = '5s'",
            "worker" => "listen = ['unix:/tmp/a', 'unix:/tmp/b']\nplain = true\nsessions = 3",
            _ => "fabric = ['10.0.0.7:7600']\nname = '12'\nstate-dir = \"/a 'quoted' \\\\ place\"",
        };
        let once = shown(role, set, &[]);
        assert_ne!(once, shown(role, "", &[]));
        assert_eq!(shown(role, &once, &[]), once, "{role}");
    }
}

#[test]
fn other_commands_have_no_configuration_file() {
    for words in [&["dxpu", "box", "ls", "--config", "x"][..], &["dxpu", "gpu", "ls", "--config", "x"]] {
        let words = words.iter().map(OsString::from).collect();
        assert!(try_settle(&cli::command(), words).unwrap().is_err());
    }
    let missing = ["dxpu", "box", "--config", "/no/such/file"].map(OsString::from).to_vec();
    let error = try_settle(&cli::command(), missing).unwrap_err();
    assert!(error.to_string().contains("cannot read the configuration /no/such/file"), "{error}");
}
