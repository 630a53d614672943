//! Checks of devices: RDMA devices, GPUs, and io_uring's fixed buffers.

use std::fs;
use std::path::Path;

use percale::device::{BufferTable, DeviceError, Interface};
use percale::{Info, TransportKind};

use super::finding::{Finding, Remedy};
use super::surroundings::{Container, Surroundings};

/// The names of the devices that the kernel has, for a machine without libibverbs as well.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// Judges the transport verbs.
pub(super) fn rdma(info: &Info, surroundings: &Surroundings) -> Finding {
    let Some(verbs) = info.transports().iter().find(|one| one.kind == TransportKind::Verbs) else {
        return Finding::absent("rdma", "percale was built without it");
    };
    if verbs.available {
        return Finding::works("rdma", &verbs.reason);
    }
    let mut devices: Vec<String> = fs::read_dir(RDMA_DEVICES)
        .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    devices.sort_unstable();
    unusable(&devices, Path::new("/dev/infiniband").exists(), &verbs.reason, surroundings)
}

fn unusable(devices: &[String], has_files: bool, reason: &str, surroundings: &Surroundings) -> Finding {
    if devices.is_empty() {
        return Finding::absent("rdma", reason);
    }
    let detail = format!("{}: {reason}", devices.join(", "));
    let remedy = if let (false, Some(command)) =
        (has_files, surroundings.container.and_then(|container| container.started_with("--device /dev/infiniband")))
    {
        Remedy::new("Start the container with the files of the devices:", [command])
    } else if !has_files {
        Remedy::new(
            "Load the kernel's module for programs that use RDMA:",
            [surroundings.as_root("modprobe ib_uverbs")],
        )
    } else if reason.contains("libibverbs") {
        let install = surroundings.as_root("apt install libibverbs1 ibverbs-providers");
        Remedy::new("Install the library and the drivers of the devices:", [install])
    } else {
        Remedy::new("The state of each port:", ["rdma link show".to_owned()])
    };
    Finding::missing("rdma", detail, remedy)
}

/// Makes a table of fixed buffers.
pub(super) fn io_uring(surroundings: &Surroundings) -> Finding {
    match BufferTable::new(1) {
        Ok(_) => Finding::works("io-uring", "transfers between files, sockets and registered memory"),
        Err(error) => {
            let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
            let remedy = if matches!(disabled.trim(), "" | "0") {
                surroundings
                    .allow_failed_call(&error.to_string(), "io_uring_setup, io_uring_register and io_uring_enter")
            } else {
                Remedy::new("Permit io_uring:", [surroundings.as_root("sysctl kernel.io_uring_disabled=0")])
            };
            Finding::limited("io-uring", format!("{error}; fixed buffers (percale::FixedBuffers) do not work"), remedy)
        }
    }
}

/// Loads the driver of CUDA.
pub(super) fn cuda(surroundings: &Surroundings) -> Finding {
    let found = Interface::Cuda.driver().and_then(|driver| {
        let names: Result<Vec<String>, DeviceError> = (0..driver.devices()).map(|at| driver.describe(at)).collect();
        names
    });
    let has_device = ["/proc/driver/nvidia/version", "/dev/nvidiactl"].iter().any(|path| Path::new(path).exists());
    match found {
        Ok(names) => Finding::works("cuda", names.join(", ")),
        Err(error) => without_cuda(&error.to_string(), has_device, surroundings),
    }
}

fn without_cuda(reason: &str, has_device: bool, surroundings: &Surroundings) -> Finding {
    if !has_device {
        return Finding::absent("cuda", reason);
    }
    // Podman gets the devices from the files of nvidia-ctk (CDI).
    let podman = surroundings.container == Some(Container::Podman);
    let option = if podman { "--device nvidia.com/gpu=all" } else { "--gpus all" };
    let remedy = match surroundings.container.and_then(|container| container.started_with(option)) {
        Some(command) => Remedy::new("Start the container with the driver and the devices:", [command]),
        None => Remedy::new(
            "Install the driver's library, in the version of the kernel's module:",
            [surroundings.as_root("apt install libcuda1")],
        ),
    };
    Finding::missing("cuda", reason, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn a_machine_without_devices_lacks_nothing() {
        let user = Surroundings::example();
        assert_eq!(unusable(&[], false, "no RDMA device found", &user).state, State::Absent);
        assert_eq!(without_cuda("no libcuda.so.1", false, &user).state, State::Absent);
        assert_eq!(without_cuda("no libcuda.so.1", true, &user).state, State::Missing);
        for (container, option) in [(Container::Docker, "--gpus"), (Container::Podman, "--device nvidia.com/gpu=all")] {
            let inside = Surroundings { container: Some(container), ..user.clone() };
            let remedy = without_cuda("no libcuda.so.1", true, &inside).remedy.unwrap();
            assert!(remedy.commands[0].contains(option), "{remedy:?}");
        }
    }

    #[test]
    fn unusable_devices_have_a_command() {
        let user = Surroundings::example();
        let docker = Surroundings { container: Some(Container::Docker), ..user.clone() };
        let devices = ["mlx5_0".to_owned()];
        let command = |has_files, reason, around| {
            let found = unusable(&devices, has_files, reason, around);
            assert!(found.state == State::Missing && found.detail.starts_with("mlx5_0: "), "{found:?}");
            found.remedy.unwrap().commands[0].clone()
        };
        assert_eq!(command(false, "no RDMA device found", &user), "sudo modprobe ib_uverbs");
        assert_eq!(command(false, "no RDMA device found", &docker), "docker run --device /dev/infiniband IMAGE");
        assert!(command(true, "libibverbs.so.1 is not installed", &user).contains("ibverbs-providers"));
        assert_eq!(command(true, "no port is active", &user), "rdma link show");
    }
}
