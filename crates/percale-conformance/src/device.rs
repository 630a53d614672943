//! Device memory and the driver for tests.
//!
//! Each test of devices runs in a separate process: an environment variable names the driver's library, and a process
//! crashes if its CPU accesses device memory. If `PERCALE_CUDA_LIBRARY` names a library, the tests use that one.
//! Otherwise they use the machine's driver, if it finds a device. Otherwise they use the test double (`cuda/double.c`),
//! which is compiled here. With the double, each test runs once with each kind of device memory ([`POOLS`]). Each test
//! prints which driver it ran on.

#![expect(
    unsafe_code,
    reason = "calls the driver to copy, allocate and free; each block states why the memory is valid"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use percale::device::{CopyWay, Device, Driver, Interface, Kind};
use percale::memory::region::RegisterError;
use percale::{Access, AtomicWork, OpFlags, RawRegion, RmaWork, Segment, Segments};

use crate::application::{copy_to_device, copy_to_host};

pub use crate::application::LIBRARY;
use crate::fabric::Fabric;
use crate::mesh::Mesh;
use crate::process::this_program;

/// The environment variable that selects the kind of the double's memory: memory of a pool (`1`) or mapped memory
/// (`mapped`), instead of separate allocations. Setting CU_POINTER_ATTRIBUTE_SYNC_MEMOPS has no effect on memory of a
/// pool, and fails for mapped memory.
pub const POOLS: &str = "DOUBLE_POOLS";
/// The environments for each value of [`POOLS`], and one without it.
pub const ALL_POOLS: [&[(&str, &str)]; 3] = [&[], &[(POOLS, "1")], &[(POOLS, "mapped")]];
/// The environment variable that is set in the separate process of a test.
const WITHIN: &str = "PERCALE_DEVICE_TEST";

/// Compiles the test double, once per process, into this directory.
fn double(directory: &Path) -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/double.c");
        let library = directory.join(format!("libcuda-double-{}.so", std::process::id()));
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        let compiled = compiler.arg(&library).arg(source).arg("-lpthread").output().expect("a C compiler");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        library
    };
    MADE.get_or_init(make).clone()
}

/// Returns the environment variable that a process needs to use a driver. Returns `None` if there is a device or if the
/// environment names a driver. Otherwise the variable names the test double, which is compiled into this directory.
///
/// # Panics
/// Panics if the test double cannot be compiled.
#[must_use]
pub fn driver_for(directory: &str) -> Option<(&'static str, PathBuf)> {
    // The machine's driver is loaded into this process only to find out whether there is a device.
    let missing = std::env::var_os(LIBRARY).is_none() && Interface::Cuda.driver().is_err();
    missing.then(|| (LIBRARY, double(Path::new(directory))))
}

/// Runs the calling test in a separate process with a driver. The name of the current thread must be the name of the
/// test. The test double is compiled into `directory`.
///
/// # Panics
/// Panics if the test fails there.
pub fn run(directory: &str, test: fn()) {
    if is_within() {
        let driver = Interface::Cuda.driver().expect("a driver");
        println!("on {} (1 of {})", driver.describe(0).expect("a device"), driver.devices());
        return test();
    }
    let driver = driver_for(directory);
    // The machine's driver does not use this variable.
    let all = if driver.is_some() { &ALL_POOLS[..] } else { &ALL_POOLS[..1] };
    for pools in all {
        let (name, mut command) = within();
        let output = command.envs(driver.clone()).envs(pools.iter().copied()).output().expect("a process for the test");
        let printed = String::from_utf8_lossy(&output.stdout);
        let on = printed.lines().find_map(|line| line.find("on ").map(|at| &line[at..])).unwrap_or("no driver");
        let on = pools.iter().fold(on.to_owned(), |on, (name, value)| format!("{on}, {name}={value}"));
        println!("{name}: {on}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}, {on}: {}\n{printed}\n{errors}", output.status);
    }
}

/// Runs the calling test on the double, even if the machine has a device. The test runs once with each of these sets of
/// variables, each time in a separate process. The double is compiled into `directory`.
///
/// # Panics
/// Panics if the test fails there.
pub fn run_on_double(directory: &str, environments: &[&[(&str, &str)]], test: fn()) {
    if is_within() {
        return test();
    }
    let library = double(Path::new(directory));
    let library = library.to_string_lossy();
    for variables in environments {
        run_with(&[&[(LIBRARY, &*library)], *variables].concat(), test);
    }
}

/// Runs the calling test in a separate process with these environment variables.
///
/// # Panics
/// Panics if the test fails there.
pub fn run_with(variables: &[(&str, &str)], test: fn()) {
    if is_within() {
        return test();
    }
    let (name, mut command) = within();
    let output = command.envs(variables.iter().copied()).output().expect("a process for the test");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{errors}", output.status);
}

/// Returns whether this is the separate process of a test.
fn is_within() -> bool {
    std::env::var_os(WITHIN).is_some()
}

/// Returns the name of the calling test, and the command that runs this program with only that test.
fn within() -> (String, Command) {
    let name = std::thread::current().name().expect("threads of tests have names").to_owned();
    let mut command = this_program();
    command.args([&*name, "--exact", "--nocapture", "--test-threads=1"]).env(WITHIN, "1").stdin(Stdio::null());
    (name, command)
}

/// Returns the driver that the test uses.
///
/// # Panics
/// Panics if there is none.
#[must_use]
pub fn driver() -> &'static dyn Driver {
    Interface::Cuda.driver().expect("a driver")
}

/// Returns a device.
///
/// # Panics
/// Panics if there is no such device.
#[must_use]
pub fn device(ordinal: u32) -> Device {
    Device::new(Interface::Cuda, ordinal).expect("a device")
}

/// Memory of a driver. Only [`free`](Self::free) frees it. Copies refer to the same memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    kind: Kind,
    ordinal: u32,
    segment: Segment,
}

impl DeviceMemory {
    /// Allocates memory with these contents.
    ///
    /// # Panics
    /// Panics if the driver cannot allocate it.
    #[must_use]
    pub fn of(kind: Kind, ordinal: u32, bytes: &[u8]) -> Self {
        let segment = driver().allocate(kind, ordinal, bytes.len().max(1)).expect("a device's memory");
        let memory = Self { kind, ordinal, segment: segment.slice(0, bytes.len()) };
        memory.write(bytes);
        memory
    }

    /// Allocates memory of device 0 with these contents.
    #[must_use]
    pub fn on_device(bytes: &[u8]) -> Self {
        Self::of(Kind::Device, 0, bytes)
    }

    /// Allocates memory of device 0, filled with `0xEE`.
    #[must_use]
    pub fn blank(len: usize) -> Self {
        Self::on_device(&vec![0xEE; len])
    }

    /// Returns the memory as one segment.
    #[must_use]
    pub const fn segment(&self) -> Segment {
        self.segment
    }

    /// Returns the memory in the form that operations accept.
    #[must_use]
    pub const fn segments(&self) -> Segments {
        Segments::one(self.segment)
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.segment.as_ptr().addr() as u64
    }

    fn copy_segment(&self, way: CopyWay, host: Segment) {
        let (to, from) = if way == CopyWay::ToHost { (host, self.segment) } else { (self.segment, host) };
        // SAFETY: the memory is not freed while the test uses it, and the other bytes are borrowed by the caller.
        let copies = unsafe { driver().begin(self.ordinal, &[(way, to, from)]) }.expect("a copy");
        driver().finish(copies).expect("the copy");
    }

    /// Makes the driver copy the memory to pinned host memory of the same size.
    ///
    /// # Panics
    /// Panics if the driver reports an error, or if the other memory is not pinned.
    pub fn copy_to_pinned(&self, host: Self) {
        assert_eq!(
            (host.kind, host.segment.len()),
            (Kind::Pinned, self.segment.len()),
            "pinned memory of the same length"
        );
        self.copy_segment(CopyWay::ToHost, host.segment);
    }

    /// Makes the driver fill the memory from pinned host memory of the same size.
    ///
    /// # Panics
    /// Panics in the same cases as [`Self::copy_to_pinned`].
    pub fn copy_from_pinned(&self, host: Self) {
        assert_eq!(
            (host.kind, host.segment.len()),
            (Kind::Pinned, self.segment.len()),
            "pinned memory of the same length"
        );
        self.copy_segment(CopyWay::ToDevice, host.segment);
    }

    /// Returns the contents of the memory, copied by the application.
    #[must_use]
    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.segment.len()];
        copy_to_host(self.ordinal, &mut bytes, self.segment);
        bytes
    }

    /// Writes the first bytes of the memory by a synchronous copy of the application. The last bytes may still be in
    /// flight when this returns.
    pub fn write(&self, bytes: &[u8]) {
        copy_to_device(self.ordinal, self.segment, bytes);
    }

    /// Returns the address of memory that the CPU can access. Panics if the CPU cannot access it.
    fn in_reach(&self) -> *mut u8 {
        assert!(matches!(self.kind, Kind::Managed | Kind::Pinned), "the CPU cannot access {:?} memory", self.kind);
        self.segment.as_ptr()
    }

    /// Returns the contents, copied by the CPU.
    ///
    /// # Panics
    /// Panics if the CPU cannot access the memory.
    #[must_use]
    pub fn load(&self) -> Vec<u8> {
        let (from, mut bytes) = (self.in_reach(), vec![0; self.segment.len()]);
        // SAFETY: the CPU can access the memory, which is not freed while the test uses it. The vector is new.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Writes `bytes` to the beginning of the memory with the CPU.
    ///
    /// # Panics
    /// Panics if the CPU cannot access the memory, or if the memory is shorter.
    pub fn store(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.segment.len(), "the bytes fit");
        // SAFETY: as in `load`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.in_reach(), bytes.len()) };
    }

    /// Frees the memory. The caller must not use it any more.
    pub fn free(self) {
        // SAFETY: the driver allocated the memory, and tests free it only when nothing uses it.
        unsafe { driver().free(self.kind, self.ordinal, self.segment) };
    }
}

/// Registers device memory at an endpoint. Registers host memory if the memory belongs to no device.
///
/// # Errors
/// Returns the errors of the domain.
pub fn register<F: Fabric>(
    mesh: &Mesh<F>,
    at: usize,
    memory: DeviceMemory,
    of: impl Into<Option<Device>>,
    access: Access,
) -> Result<RawRegion, RegisterError> {
    register_segment(mesh, at, memory.segment(), of.into(), access)
}

/// Like [`register`], for any memory that is never freed, or that is freed after the region was closed.
///
/// # Errors
/// Returns the errors of the domain.
pub fn register_segment<F: Fabric>(
    mesh: &Mesh<F>,
    at: usize,
    memory: Segment,
    of: Option<Device>,
    access: Access,
) -> Result<RawRegion, RegisterError> {
    let registration = mesh.test_endpoint(at).domain.registration(access);
    let registration = if let Some(device) = of { registration.device(device) } else { registration };
    // SAFETY: tests keep the memory until the region is closed, and read it only while no operation is outstanding.
    unsafe { registration.raw(&[memory], true) }
}

impl<F: Fabric> Mesh<F> {
    /// Posts a write or a read. The local memory may be device memory.
    #[track_caller]
    pub fn access_device(&self, from: usize, write: bool, work: RmaWork) -> u64 {
        let work = RmaWork { flags: work.flags | OpFlags::DEVICE, ..work };
        let endpoint = self.endpoint(from);
        let posted = if write {
            // SAFETY: tests free their memory when nothing uses it, and access it only after the operation has ended.
            unsafe { endpoint.post_write(&work) }
        } else {
            // SAFETY: as above.
            unsafe { endpoint.post_read(&work) }
        };
        posted.expect("room for an access");
        work.context
    }

    /// Posts an atomic operation. The local memory may be device memory.
    #[track_caller]
    pub fn atomic_device(&self, from: usize, work: AtomicWork) -> u64 {
        let work = AtomicWork { context: self.context(), flags: work.flags | OpFlags::DEVICE, ..work };
        // SAFETY: as in `access_device`.
        unsafe { self.endpoint(from).post_atomic(&work) }.expect("room for an atomic operation");
        work.context
    }
}
