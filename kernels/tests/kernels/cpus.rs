use std::path::PathBuf;

use trunkline_kernels::cpus::{Core, UsableCpus};
#[cfg(target_os = "linux")]
use trunkline_kernels::cpus::{affinity, pin, set_affinity, unpin};

const MAX_DEFAULT_THREADS: usize = 64;

/// A temporary folder that replaces `/`. Dropping it removes the folder.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trunkline-cpus-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn remove(&self, path: &str) {
        std::fs::remove_file(self.0.join(path)).unwrap();
    }

    fn siblings(&self, cpu: usize, list: &str) -> &Self {
        self.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"), list)
    }

    fn read(&self, num_cpus: usize) -> UsableCpus {
        UsableCpus::read(&self.0, Some((0..num_cpus).collect()))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn one_thread_per_core_in_the_affinity_mask() {
    let root = Root::new("cores");
    for cpu in 0..8 {
        root.siblings(cpu, &format!("{},{}\n", cpu % 4, cpu % 4 + 4));
    }
    assert_eq!(root.read(8).default_num_threads(), 4);
    assert_eq!(root.read(8).max_parallel_threads(), 8);
    // CPUs 4 and 5 are second threads of cores whose first CPUs are not usable.
    let some = UsableCpus::read(&root.0, Some(vec![4, 5, 1]));
    assert_eq!(some.default_num_threads(), 2);
    assert_eq!(some.cores, [Core { node: 0, cpus: vec![4] }, Core { node: 0, cpus: vec![1, 5] }]);
    let bare = Root::new("bare");
    assert_eq!(bare.read(200).default_num_threads(), MAX_DEFAULT_THREADS);
    assert!(UsableCpus::read(&bare.0, None).default_num_threads() >= 1);
}

#[test]
fn the_tightest_quota_of_all_ancestor_groups_applies() {
    let root = Root::new("v2");
    root.write("sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_eq!(root.read(8).quota, None);
    root.write("sys/fs/cgroup/cpu.max", "650000 100000\n");
    assert_eq!(root.read(8).default_num_threads(), 6);
    root.write("proc/self/cgroup", "0::/system.slice/server.service\n");
    root.write("sys/fs/cgroup/system.slice/server.service/cpu.max", "max 100000\n");
    assert_eq!(root.read(8).quota, Some(6));
    root.write("sys/fs/cgroup/system.slice/cpu.max", "250000 100000\n");
    assert_eq!(root.read(8).quota, Some(2));
    root.write("sys/fs/cgroup/system.slice/server.service/cpu.max", "50000 100000\n");
    assert_eq!(root.read(8).quota, Some(1));
    for bad in ["", "1", "x 100000", "100000 0", "-1 100000"] {
        root.write("sys/fs/cgroup/system.slice/server.service/cpu.max", bad);
        assert_eq!(root.read(8).quota, Some(2), "{bad:?}");
    }
}

#[test]
fn quotas_of_cgroup_version_1_apply() {
    let root = Root::new("v1");
    root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_eq!(root.read(8).quota, None);
    root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
    assert_eq!(root.read(8).quota, Some(3));
    root.remove("sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    root.write("proc/self/cgroup", "5:memory:/other\n4:cpu,cpuacct:/docker/1\n0::/unused\n");
    root.write("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us", "200000\n");
    root.write("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us", "50000\n");
    assert_eq!(root.read(8).quota, Some(4));
}

#[test]
fn threads_are_placed_node_by_node_and_core_by_core() {
    let root = Root::new("nodes");
    root.write("sys/devices/system/node/node0/cpulist", "0,2,4,6\n");
    root.write("sys/devices/system/node/node1/cpulist", "1,3,5,7\n");
    root.write("sys/devices/system/node/possible", "0-1\n");
    for cpu in 0..8 {
        root.siblings(cpu, &format!("{},{}\n", cpu % 4, cpu % 4 + 4));
    }
    let cpus = root.read(8);
    assert_eq!(cpus.nodes(), [0, 1]);
    assert_eq!(cpus.placement(3).unwrap(), [vec![0, 4], vec![2, 6], vec![1, 5]]);
    assert_eq!(cpus.placement(8).unwrap().concat(), [0, 4, 2, 6, 1, 5, 3, 7]);
    assert_eq!(cpus.placement(9), None);
    assert!(!cpus.are_all_taken_by(3) && !cpus.are_all_taken_by(9));
    assert!(cpus.are_all_taken_by(4) && cpus.are_all_taken_by(8));
    root.write("sys/fs/cgroup/cpu.max", "300000 100000\n");
    assert!(!root.read(8).are_all_taken_by(4));
}

#[cfg(target_os = "linux")]
#[test]
fn each_thread_has_its_own_affinity() {
    let before = affinity().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let last = *before.last().unwrap();
            set_affinity(&[last]).unwrap();
            assert_eq!(affinity(), Some(vec![last]));
            assert_eq!(UsableCpus::detect().default_num_threads(), 1);
            set_affinity(&before).unwrap();
            let usable = UsableCpus::detect();
            pin(&[last]);
            assert_eq!(affinity(), Some(vec![last]));
            assert_eq!(UsableCpus::detect(), usable, "what a pool pins is not what the user allows");
            pin(&[before[0]]);
            unpin();
            assert_eq!(affinity().as_ref(), Some(&before));
        });
    });
    assert_eq!(affinity(), Some(before));
}
