//! Instruction sets: which of them this CPU has and this build contains, and which one is used.

use std::fmt;

/// The environment variable that forces an instruction set by name.
const ISA_VARIABLE: &str = "TRUNKLINE_ISA";

/// An instruction set, which this machine may lack. See [`Isa`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum IsaKind {
    /// Portable code, the reference for the other sets.
    Scalar,
    Avx2,
    /// [`IsaKind::Avx2`] with the 256-bit VNNI instructions of AVX-VNNI or AVX-512.
    AvxVnni,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// [`IsaKind::Avx512`] with dot products of bfloat16.
    Avx512Bf16,
    /// [`IsaKind::Avx512Bf16`] with products of tiles of bfloat16 (AMX).
    Amx,
    /// AArch64 NEON with dot products.
    Neon,
    /// [`IsaKind::Neon`] with matrix products of bytes (I8MM).
    NeonI8mm,
}

impl IsaKind {
    /// All instruction sets, slowest first.
    pub const ALL: [IsaKind; 8] = [
        IsaKind::Scalar,
        IsaKind::Avx2,
        IsaKind::AvxVnni,
        IsaKind::Avx512,
        IsaKind::Avx512Bf16,
        IsaKind::Amx,
        IsaKind::Neon,
        IsaKind::NeonI8mm,
    ];

    /// The name of the set as a value of [`ISA_VARIABLE`].
    pub fn name(self) -> &'static str {
        match self {
            IsaKind::Scalar => "scalar",
            IsaKind::Avx2 => "avx2",
            IsaKind::AvxVnni => "avx_vnni",
            IsaKind::Avx512 => "avx512",
            IsaKind::Avx512Bf16 => "avx512_bf16",
            IsaKind::Amx => "amx",
            IsaKind::Neon => "neon",
            IsaKind::NeonI8mm => "neon_i8mm",
        }
    }

    /// Returns true if this build contains the kernels of the set. `build.rs` selects them.
    fn is_compiled(self) -> bool {
        match self {
            IsaKind::Scalar => cfg!(isa = "scalar"),
            IsaKind::Avx2 => cfg!(isa = "avx2"),
            IsaKind::AvxVnni => cfg!(isa = "avx_vnni"),
            // The three differ in a few kernels.
            IsaKind::Avx512 | IsaKind::Avx512Bf16 | IsaKind::Amx => cfg!(isa = "avx512"),
            IsaKind::Neon => cfg!(isa = "neon"),
            IsaKind::NeonI8mm => cfg!(isa = "neon_i8mm"),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_supported(self) -> bool {
        match self {
            IsaKind::Scalar => true,
            IsaKind::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            IsaKind::AvxVnni => {
                // The instruction has two encodings: VEX (AVX-VNNI) and EVEX (AVX-512 VL and VNNI).
                IsaKind::Avx2.is_supported()
                    && (is_x86_feature_detected!("avxvnni")
                        || (is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vnni")))
            }
            IsaKind::Avx512 => {
                IsaKind::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            IsaKind::Avx512Bf16 => IsaKind::Avx512.is_supported() && is_x86_feature_detected!("avx512bf16"),
            IsaKind::Amx => IsaKind::Avx512Bf16.is_supported() && may_use_amx(),
            IsaKind::Neon | IsaKind::NeonI8mm => false,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_supported(self) -> bool {
        match self {
            IsaKind::Scalar => true,
            IsaKind::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            IsaKind::NeonI8mm => {
                IsaKind::Neon.is_supported() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            IsaKind::Avx2 | IsaKind::AvxVnni | IsaKind::Avx512 | IsaKind::Avx512Bf16 | IsaKind::Amx => false,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_supported(self) -> bool {
        self == IsaKind::Scalar
    }
}

/// Returns true if the CPU has AMX for bfloat16, and Linux (5.16 or later) lets this process use its registers.
/// The process asks for it here, because by default a program with small signal stacks could not save them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn may_use_amx() -> bool {
    use std::sync::OnceLock;
    /// AMX-BF16 and AMX-TILE in `edx` of leaf 7 (Intel's Software Developer's Manual, volume 2, CPUID).
    const FEATURES: u32 = 1 << 22 | 1 << 24;
    /// The request and the feature are numbers of Linux's `Documentation/arch/x86/xstate.rst`.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    static IS_PERMITTED: OnceLock<bool> = OnceLock::new();
    *IS_PERMITTED.get_or_init(|| {
        let has_features = std::arch::x86_64::__cpuid_count(7, 0).edx & FEATURES == FEATURES;
        // SAFETY: the call takes two numbers and changes only which registers this process may use.
        has_features
            && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0
    })
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn may_use_amx() -> bool {
    false
}

/// An instruction set that this CPU has. Holding one proves that its kernels may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(IsaKind);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IsaError {
    /// The name is not one of [`IsaKind::ALL`].
    #[error("`{ISA_VARIABLE}` is {name:?}; hint: use one of {}, or unset it", known_names())]
    Unknown { name: String },
    #[error("this CPU lacks the instruction set `{}`; hint: unset `{ISA_VARIABLE}`", kind.name())]
    Unsupported { kind: IsaKind },
    /// The build contains only the fastest set of the machine that compiled it, and this CPU lacks it.
    #[error(
        "this build has no kernels for this CPU; hint: build on this machine, or anywhere with `make build FULL=1`"
    )]
    NoneUsable,
    /// The build does not contain the kernels of the requested set.
    #[error(
        "this build lacks the kernels for `{}`; hint: unset `{ISA_VARIABLE}`, or build with `make build FULL=1`",
        kind.name()
    )]
    NotCompiled { kind: IsaKind },
}

fn known_names() -> String {
    IsaKind::ALL.map(IsaKind::name).join(", ")
}

impl Isa {
    /// The portable set, which every CPU has.
    #[cfg(isa = "scalar")]
    pub const SCALAR: Isa = Isa(IsaKind::Scalar);

    /// Returns `kind` if this CPU has it and this build contains its kernels.
    pub fn new(kind: IsaKind) -> Result<Self, IsaError> {
        match (kind.is_compiled(), kind.is_supported()) {
            (true, true) => Ok(Self(kind)),
            (false, true) => Err(IsaError::NotCompiled { kind }),
            (_, false) => Err(IsaError::Unsupported { kind }),
        }
    }

    /// Returns the set that [`ISA_VARIABLE`] names, or the fastest set of this CPU if the variable is not set.
    pub fn detect() -> Result<Self, IsaError> {
        match std::env::var_os(ISA_VARIABLE) {
            Some(name) => Self::named(&name.to_string_lossy()),
            None => Self::available().pop().ok_or(IsaError::NoneUsable),
        }
    }

    /// Returns the set with this name, if this CPU has it and this build contains its kernels.
    pub fn named(name: &str) -> Result<Self, IsaError> {
        let kind = IsaKind::ALL.into_iter().find(|kind| kind.name() == name);
        Self::new(kind.ok_or_else(|| IsaError::Unknown { name: name.to_owned() })?)
    }

    /// Returns all usable sets, slowest first.
    pub fn available() -> Vec<Self> {
        IsaKind::ALL.into_iter().filter_map(|kind| Self::new(kind).ok()).collect()
    }

    #[inline]
    pub fn kind(self) -> IsaKind {
        self.0
    }

    pub fn name(self) -> &'static str {
        self.0.name()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Returns the CPU features that affect the choice of kernels, or may in the future, and whether this CPU has them. For
/// bug reports.
#[cfg(target_arch = "x86_64")]
pub fn cpu_features() -> Vec<(&'static str, bool)> {
    vec![
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avxvnni", is_x86_feature_detected!("avxvnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
        ("avx512dq", is_x86_feature_detected!("avx512dq")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
        ("avx512fp16", is_x86_feature_detected!("avx512fp16")),
        ("amx", may_use_amx()),
    ]
}

/// Returns the CPU features that affect the choice of kernels, or may in the future, and whether this CPU has them. For
/// bug reports.
#[cfg(target_arch = "aarch64")]
pub fn cpu_features() -> Vec<(&'static str, bool)> {
    use std::arch::is_aarch64_feature_detected;
    vec![
        ("neon", is_aarch64_feature_detected!("neon")),
        ("dotprod", is_aarch64_feature_detected!("dotprod")),
        ("i8mm", is_aarch64_feature_detected!("i8mm")),
        ("bf16", is_aarch64_feature_detected!("bf16")),
        ("sve", is_aarch64_feature_detected!("sve")),
    ]
}

/// Returns nothing: no feature of this architecture affects the choice of kernels.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn cpu_features() -> Vec<(&'static str, bool)> {
    Vec::new()
}
