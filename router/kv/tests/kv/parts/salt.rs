//! Salts keep tenants apart.

use trunkline_kv::Salt;

#[test]
fn parts_do_not_run_together() {
    assert_ne!(Salt::new(&["ab", "c"]), Salt::new(&["a", "bc"]));
    assert_ne!(Salt::new(&[""]), Salt::default());
    assert_eq!(Salt::new(&[]), Salt::default());
    assert_eq!(Salt::of_tenant("a", &["b"]).tenant(), Some("a"));
    assert_ne!(Salt::of_tenant("a", &["b"]), Salt::of_tenant("a", &[]));
    assert_eq!(Salt::new(&["tenant"]).tenant(), None);
    assert_eq!(Salt::new(&["m", "t"]).parts().collect::<Vec<_>>(), ["m", "t"]);
}
