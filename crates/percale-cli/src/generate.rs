//! `percale generate`: manual pages and shell completions, from the definition of the command line.
//!
//! The folders below the directory are those of /usr/share and of a user's ~/.local/share, so that man(1) and the shells
//! find the files there. The files depend only on the version of the command.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::output::print_line;

/// The arguments of `percale generate`.
#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// The directory, for example /usr/local/share or ~/.local/share
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print one JSON object for each file
    #[arg(long)]
    json: bool,
}

/// The name of the command.
const NAME: &str = "percale";

/// The folder of the manual pages.
const MANUAL: &str = "man/man1";

/// The shells, each with the file that it loads.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/percale"),
    (Shell::Zsh, "zsh/site-functions/_percale"),
    (Shell::Fish, "fish/vendor_completions.d/percale.fish"),
];

/// A written file, as an object of `--json`.
#[derive(Debug, Serialize)]
struct GeneratedFile {
    /// "man", or the name of the shell.
    kind: String,
    path: PathBuf,
}

/// Runs the subcommand. `command` is the definition of the command line.
pub(crate) fn run(args: &GenerateArgs, command: Command) -> Result<()> {
    let files = write(&args.directory, command)?;
    for file in files {
        let line = if args.json {
            serde_json::to_string(&file).map_err(Failure::system("writing JSON"))?
        } else {
            format!("{:<5} {}", file.kind, file.path.display())
        };
        print_line(&line)?;
    }
    Ok(())
}

fn write(directory: &Path, command: Command) -> Result<Vec<GeneratedFile>> {
    let mut files = Vec::new();
    let visible = visible(&command);
    for (shell, name) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut visible.clone(), NAME, &mut script);
        let path = directory.join(name);
        create(&path)?.write_all(&script).map_err(failed(&path))?;
        files.push(GeneratedFile { kind: shell.to_string(), path });
    }
    // Builds the names of the subcommands' pages: percale-perf. `help` has no page.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    for command in std::iter::once(&command).chain(subcommands) {
        let page = clap_mangen::Man::new(command.clone()).manual("percale");
        let path = directory.join(MANUAL).join(page.get_filename());
        let mut out = BufWriter::new(create(&path)?);
        page.render(&mut out).and_then(|()| out.flush()).map_err(failed(&path))?;
        files.push(GeneratedFile { kind: "man".into(), path });
    }
    Ok(files)
}

/// Returns the command line without hidden subcommands, which clap_complete would offer.
fn visible(command: &Command) -> Command {
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .args(command.get_arguments().cloned())
        .subcommands(subcommands.cloned())
}

/// Creates a file and the folders above it.
fn create(path: &Path) -> Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Failure::system(format!("creating {}", folder.display())))?;
    }
    File::create(path).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    Failure::system(format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    /// Returns the names and contents of the files that are generated in a new directory.
    fn generated(name: &str) -> Vec<(String, String)> {
        let directory = std::env::temp_dir().join(format!("percale-generate-{name}-{}", std::process::id()));
        let files = write(&directory, Args::command()).unwrap();
        let read = |file: &GeneratedFile| {
            let name = file.path.strip_prefix(&directory).unwrap().display().to_string();
            (name, fs::read_to_string(&file.path).unwrap())
        };
        let all = files.iter().map(read).collect();
        fs::remove_dir_all(&directory).unwrap();
        all
    }

    #[test]
    fn visible_subcommands_have_pages_and_completions() {
        let files = generated("complete");
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        for command in Args::command().get_subcommands() {
            let page = format!("man/man1/percale-{}.1", command.get_name());
            assert_eq!(names.contains(&page.as_str()), !command.is_hide_set(), "{page} in {names:?}");
        }
        assert!(names.contains(&"man/man1/percale.1"), "{names:?}");
        for (_, name) in COMPLETIONS {
            let (_, script) = files.iter().find(|(its, _)| its == name).unwrap();
            assert!(script.contains("torture") && script.contains("json"), "{name}: {script}");
            for command in Args::command().get_subcommands().filter(|command| command.is_hide_set()) {
                assert!(!script.contains(command.get_name()), "{name} has {}: {script}", command.get_name());
            }
        }
    }

    #[test]
    fn pages_are_the_same_in_each_directory() {
        assert_eq!(generated("first"), generated("second"));
    }

    #[test]
    fn page_of_a_subcommand_has_its_options() {
        let files = generated("options");
        let (_, page) = files.iter().find(|(name, _)| name == "man/man1/percale-perf.1").unwrap();
        assert!(page.contains("seconds") && page.starts_with(".ie"), "{page}");
    }
}
