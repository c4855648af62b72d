//! A disk in memory that injects faults.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use trunkline_store::disk::DiskFile;

/// An operation that a fault can hit.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Read { num_bytes: usize },
    Write { file: &'static str, num_bytes: usize },
    Other,
}

/// A fault to inject into one operation.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    None,
    /// Fails with this error number and does nothing.
    Error(i32),
    /// Writes this many bytes, then fails with this error number.
    Torn(usize, i32),
    /// Transfers only this many bytes, without an error.
    Short(usize),
    /// Flips the bit with this index, without an error.
    Flipped(usize),
}

type Faults = Box<dyn FnMut(Operation) -> Fault + Send>;

/// Two files with injected faults. Clones share the same disk.
#[derive(Clone)]
pub struct Disk {
    records: Arc<Mutex<Vec<u8>>>,
    blocks: Arc<Mutex<Vec<u8>>>,
    faults: Arc<Mutex<Faults>>,
    num_faults: Arc<AtomicUsize>,
    num_begun: Arc<(Mutex<usize>, Condvar)>,
    /// While it is held, the disk takes its time.
    pub gate: Arc<Mutex<()>>,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            records: Arc::default(),
            blocks: Arc::default(),
            faults: Arc::new(Mutex::new(Box::new(|_| Fault::None))),
            num_faults: Arc::default(),
            num_begun: Arc::default(),
            gate: Arc::default(),
        }
    }
}

impl Disk {
    pub fn set(&self, faults: impl FnMut(Operation) -> Fault + Send + 'static) {
        *lock(&self.faults) = Box::new(faults);
    }

    /// Faults so far, short reads and writes not counted.
    pub fn num_faults(&self) -> usize {
        self.num_faults.load(Ordering::Relaxed)
    }

    /// Operations that the disk was asked for, whether they are done or wait at the gate.
    pub fn num_begun(&self) -> usize {
        *lock(&self.num_begun.0)
    }

    /// Returns when more than so many operations were begun.
    pub fn wait_begun(&self, before: usize) {
        let (count, changed) = &*self.num_begun;
        drop(
            changed
                .wait_while(lock(count), |count| *count <= before)
                .expect("no test panics while it is held"),
        );
    }

    pub fn records(&self) -> Box<dyn DiskFile> {
        Box::new(FaultyFile { name: "records", bytes: Arc::clone(&self.records), disk: self.clone() })
    }

    pub fn blocks(&self) -> Box<dyn DiskFile> {
        Box::new(FaultyFile { name: "blocks", bytes: Arc::clone(&self.blocks), disk: self.clone() })
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics while it is held")
}

struct FaultyFile {
    name: &'static str,
    bytes: Arc<Mutex<Vec<u8>>>,
    disk: Disk,
}

impl std::fmt::Debug for FaultyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl FaultyFile {
    fn fault(&self, operation: Operation) -> Fault {
        let (count, changed) = &*self.disk.num_begun;
        *lock(count) += 1;
        changed.notify_all();
        drop(lock(&self.disk.gate));
        let fault = (lock(&self.disk.faults))(operation);
        if !matches!(fault, Fault::None | Fault::Short(_)) {
            self.disk.num_faults.fetch_add(1, Ordering::Relaxed);
        }
        fault
    }

    fn other(&self) -> io::Result<()> {
        match self.fault(Operation::Other) {
            Fault::Error(number) | Fault::Torn(_, number) => Err(io::Error::from_raw_os_error(number)),
            _ => Ok(()),
        }
    }
}

impl DiskFile for FaultyFile {
    fn num_bytes(&self) -> io::Result<u64> {
        self.other()?;
        Ok(lock(&self.bytes).len() as u64)
    }

    fn set_num_bytes(&self, num_bytes: u64) -> io::Result<()> {
        self.other()?;
        lock(&self.bytes).resize(num_bytes as usize, 0);
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let fault = self.fault(Operation::Read { num_bytes: bytes.len() });
        let file = lock(&self.bytes);
        let there = file.get(offset as usize..).unwrap_or_default();
        let mut count = there.len().min(bytes.len());
        match fault {
            Fault::Error(number) | Fault::Torn(_, number) => {
                return Err(io::Error::from_raw_os_error(number));
            }
            Fault::Short(most) => count = count.min(most.max(1)),
            Fault::None | Fault::Flipped(_) => {}
        }
        bytes[..count].copy_from_slice(&there[..count]);
        if let (Fault::Flipped(bit), 1..) = (fault, count) {
            bytes[bit / 8 % count] ^= 1 << (bit % 8);
        }
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let fault = self.fault(Operation::Write { file: self.name, num_bytes: bytes.len() });
        let count = match fault {
            Fault::Error(_) => 0,
            Fault::Torn(count, _) | Fault::Short(count) => count.clamp(1, bytes.len()),
            Fault::None | Fault::Flipped(_) => bytes.len(),
        };
        let mut file = lock(&self.bytes);
        let (begin, end) = (offset as usize, offset as usize + count);
        if file.len() < end {
            file.resize(end, 0);
        }
        file[begin..end].copy_from_slice(&bytes[..count]);
        match fault {
            Fault::Error(number) | Fault::Torn(_, number) => Err(io::Error::from_raw_os_error(number)),
            Fault::Flipped(bit) => {
                file[begin + bit / 8 % count] ^= 1 << (bit % 8);
                Ok(count)
            }
            _ => Ok(count),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.other()
    }
}
