use trunkline_kernels::isa::{Isa, IsaError, IsaKind};

#[test]
fn available_sets_begin_with_scalar_and_are_found_by_name() {
    let available = Isa::available();
    assert_eq!(available[0], Isa::SCALAR);
    for isa in available {
        assert_eq!(Isa::named(isa.name()), Ok(isa));
    }
}

#[test]
fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
    let error = Isa::named("sse9").expect_err("no such set");
    assert_eq!(
        error.to_string(),
        "`TRUNKLINE_ISA` is \"sse9\"; hint: use one of scalar, avx2, avx_vnni, avx512, avx512_bf16, amx, neon, neon_i8mm, or unset it"
    );
}

#[test]
fn an_unsupported_set_is_an_error() {
    for kind in IsaKind::ALL {
        match Isa::new(kind) {
            Ok(isa) => assert!(isa.kind() == kind && Isa::available().contains(&isa), "{kind:?}"),
            Err(error) => {
                assert_eq!(error, IsaError::Unsupported { kind });
                assert_eq!(Isa::named(kind.name()), Err(error));
            }
        }
    }
    // No CPU has both sets.
    assert!(Isa::new(IsaKind::Avx2).is_err() || Isa::new(IsaKind::Neon).is_err());
    let error = IsaError::Unsupported { kind: IsaKind::Avx512 };
    assert!(error.to_string().contains("`avx512`"), "{error}");
}
