//! The files of one boot: the program, its libraries, other files, and the script that runs it.

use super::cpio::Archive;
use super::image::Image;
use crate::failure::{Failure, Outcome};
use crate::program::Program;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const INIT: &str = include_str!("init.sh");

/// A program that runs in the guest. Its path in the guest is the same as on this machine, so that programs find each
/// other.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    /// Environment variables as NAME=VALUE.
    pub(super) environment: Vec<String>,
    /// An archive that is placed on top of the image's files, below all other files.
    pub(super) layer: Option<PathBuf>,
    /// Other programs, files and directories that the program uses.
    pub(super) files: Vec<PathBuf>,
    /// The working directory of the program. It is created if it does not exist.
    pub(super) directory: Option<PathBuf>,
}

/// Packs all files as file systems that are placed on top of the image's.
pub(super) fn pack(job: &Job, image: &Image, scratch: &Path) -> Outcome<Vec<u8>> {
    let mut packed = job.layer.as_ref().map(fs::read).transpose()?.unwrap_or_default();
    let mut archive = Archive::default();
    archive.file(Path::new("/init"), 0o755, INIT.as_bytes())?;
    archive.file(Path::new("/percale/run"), 0o644, script(job).as_bytes())?;
    for file in std::iter::once(&job.program).chain(&job.files) {
        add(&mut archive, file, image, scratch)?;
    }
    if let Some(directory) = &job.directory {
        archive.directory(directory)?;
    }
    packed.extend(archive.finish()?);
    Ok(packed)
}

/// Adds a file or directory. A program is added without its debug information, and with the libraries that the image
/// lacks. All other files and directories are added unchanged.
fn add(archive: &mut Archive, file: &Path, image: &Image, scratch: &Path) -> Outcome {
    if file.is_dir() {
        return archive.tree(file, file, &|path| !path.ends_with("__pycache__"));
    }
    let contents = fs::read(file).map_err(Failure::during(file.display()))?;
    let mode = fs::metadata(file)?.permissions().mode() & 0o777;
    if !contents.starts_with(b"\x7fELF") {
        return archive.file(file, mode, &contents);
    }
    let small = scratch.join("stripped");
    let stripped = Program::new("objcopy").arg("--strip-debug").arg(file).arg(&small).output().and_then(|output| {
        output.success()?;
        Ok(fs::read(&small)?)
    });
    // If the tool is missing, the file is larger, which is not an error.
    archive.file(file, mode, &stripped.unwrap_or(contents))?;
    let listed = Program::new("ldd").arg(file).env("LC_ALL", "C").output()?;
    for (name, path) in listed.stdout.lines().filter_map(library_in) {
        if !image.has_library(name) && !archive.has(path) {
            archive.file(Path::new(path), 0o755, &fs::read(path)?)?;
        }
    }
    Ok(())
}

/// Returns the library in "  libx.so.1 => /usr/lib/libx.so.1 (0x...)".
fn library_in(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.trim().split_once(" => /")?;
    let (path, _) = rest.split_once(" (")?;
    let start = line.find(path)? - 1;
    Some((name, &line[start..start + 1 + path.len()]))
}

/// Returns the shell script of a job. The shell's exit code is that of the program, or 128 plus the signal that killed
/// it.
fn script(job: &Job) -> String {
    let mut lines: Vec<String> = job.environment.iter().map(|setting| format!("export {}", quoted(setting))).collect();
    if let Some(directory) = &job.directory {
        lines.push(format!("cd {}", quoted(&directory.to_string_lossy())));
    }
    let words = std::iter::once(job.program.to_string_lossy().into_owned()).chain(job.arguments.iter().cloned());
    lines.push(words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" "));
    lines.join("\n") + "\n"
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{Job, library_in, script};

    #[test]
    fn arguments_are_quoted_for_the_shell() {
        let job = Job {
            program: "/bin/a b".into(),
            arguments: vec!["it's".into(), "$x".into()],
            environment: vec!["A=1 2".into()],
            directory: Some("/d".into()),
            ..Job::default()
        };
        assert_eq!(script(&job), "export 'A=1 2'\ncd '/d'\n'/bin/a b' 'it'\\''s' '$x'\n");
    }

    #[test]
    fn libraries_are_parsed_from_ldd_output() {
        let line = "\tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f)";
        assert_eq!(library_in(line), Some(("libgcc_s.so.1", "/lib/x86_64-linux-gnu/libgcc_s.so.1")));
        assert_eq!(library_in("\tlinux-vdso.so.1 (0x00007ffc)"), None);
        assert_eq!(library_in("\tlibx.so => not found"), None);
    }
}
