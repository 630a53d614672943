//! Kernel modules and their dependencies, which are read from the modules themselves, and the order in which they are
//! loaded.

use crate::failure::{Failure, Outcome};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules that the guest loads. The kernel would request some of them through a program that the guest does not
/// have.
pub(super) const WANTED: [&str; 9] =
    ["virtio_pci", "virtio_console", "crc32_generic", "dummy", "veth", "rdma_rxe", "ib_uverbs", "rdma_ucm", "ib_umad"];

/// Returns the files of all modules below a directory, by name.
pub(super) fn find(directory: &Path) -> Outcome<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).map_err(Failure::during(next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
            } else if let Some(name) = name_in(&path) {
                found.insert(name, path);
            }
        }
    }
    Ok(found)
}

/// Returns the module name of a file: "dummy" for ".../dummy.ko" and for ".../dummy.ko.xz". Dashes and underscores are
/// equivalent.
fn name_in(path: &Path) -> Option<String> {
    let (name, kind) = path.file_name()?.to_str()?.split_once('.')?;
    matches!(kind, "ko" | "ko.xz").then(|| name.replace('-', "_"))
}

/// Returns the wanted modules and all of their dependencies. Each follows its dependencies. `needs` returns the
/// dependencies of a module.
///
/// # Errors
/// Returns the errors of `needs`.
pub(super) fn order(wanted: &[&str], mut needs: impl FnMut(&str) -> Outcome<Vec<String>>) -> Outcome<Vec<String>> {
    fn visit(name: &str, needs: &mut impl FnMut(&str) -> Outcome<Vec<String>>, ordered: &mut Vec<String>) -> Outcome {
        if ordered.iter().any(|done| done == name) {
            return Ok(());
        }
        for other in needs(name)? {
            visit(&other, needs, ordered)?;
        }
        ordered.push(name.to_owned());
        Ok(())
    }
    let mut ordered = Vec::new();
    wanted.iter().try_for_each(|name| visit(name, &mut needs, &mut ordered))?;
    Ok(ordered)
}

/// Returns the dependencies of a module: the field "depends" of its information section.
pub(super) fn needs(module: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(FIELD.len()).position(|window| window == FIELD) else { return Vec::new() };
    let rest = &module[at + FIELD.len()..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(0);
    let names = String::from_utf8_lossy(&rest[..end]);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::{name_in, needs, order};
    use crate::failure::Failure;
    use std::path::Path;

    #[test]
    fn dependencies_are_loaded_first_and_once() {
        let needs = |name: &str| match name {
            "rxe" => Ok(vec!["core".into(), "tunnel".into()]),
            "uverbs" => Ok(vec!["core".into()]),
            "core" | "tunnel" => Ok(Vec::new()),
            other => Err(Failure::new(other)),
        };
        assert_eq!(order(&["rxe", "uverbs", "core"], needs).unwrap(), ["core", "tunnel", "rxe", "uverbs"]);
        assert!(order(&["unknown"], needs).is_err());
    }

    #[test]
    fn module_dependencies_are_read_from_the_file() {
        assert_eq!(needs(b"\x7fELF..\0license=GPL\0depends=ib_core,ip6-udp\0name=rxe\0"), ["ib_core", "ip6_udp"]);
        assert_eq!(needs(b"\0depends=\0name=dummy\0"), Vec::<String>::new());
        assert_eq!(needs(b"nothing"), Vec::<String>::new());
    }

    #[test]
    fn module_name_is_derived_from_the_file_name() {
        assert_eq!(name_in(Path::new("/x/crc32-generic.ko")).as_deref(), Some("crc32_generic"));
        assert_eq!(name_in(Path::new("/x/dummy.ko.xz")).as_deref(), Some("dummy"));
        assert_eq!(name_in(Path::new("/x/modules.order")), None);
    }
}
