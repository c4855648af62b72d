use trunkline_base::tenants::key_ring::digest;
use trunkline_base::tenants::{Tenant, TenantLimits, read_key_file as read};
use trunkline_scheduler::Priority;

const SECRET: &str = "sk-secret-0123456789";

#[test]
fn tenants_have_keys_shares_and_limits() {
    let ring = read(
        "[tenants.alice]\nkeys = [\"sk-secret-0123456789\", \"sk-secret-9876543210\"]\nshare = 2\nadmin = true\nadapters = [\"sql\"]\n\
         requests_per_minute = 60\ntokens_per_minute = 100_000\nmax_concurrent_requests = 8\n\
         [tenants.bob]\nkey_sha256 = \"9af15b336e6a9619928537df30b2e6a2376569fcf9d7e773eccede65606529a0\"\n",
    )
    .unwrap();
    assert_eq!((ring.tenants().len(), ring.num_keys()), (2, 3));
    let alice = ring.find(SECRET.as_bytes()).unwrap();
    let limits = TenantLimits {
        requests_per_minute: Some(60),
        tokens_per_minute: Some(100_000),
        max_concurrent_requests: Some(8),
    };
    let adapters = Some(["sql".to_owned()].into());
    assert_eq!(*alice, Tenant { share: 2, is_admin: true, adapters, limits, ..Tenant::new("alice") });
    let bob = ring.tenants().iter().find(|tenant| tenant.name == "bob").unwrap();
    assert_eq!((bob.share, bob.is_admin, bob.limits), (1, false, TenantLimits::default()));
    assert_eq!(bob.adapters, None);
}

#[test]
fn share_defaults_to_weight() {
    let text = "[tenants.a]\nkeys = \"sk-secret-0123456789\"\nweight = 3\nmax_priority = \"high\"\n\
                [tenants.b]\nkeys = \"sk-secret-9876543210\"\nshare = 2\nweight = 5";
    let ring = read(text).unwrap();
    let tenants = ring.tenants().iter();
    let numbers: Vec<_> = tenants.map(|tenant| (tenant.weight, tenant.share, tenant.max_priority)).collect();
    assert_eq!(numbers, [(3, 3, Priority::High), (5, 2, Priority::Normal)]);
}

#[test]
fn a_digest_identifies_its_key() {
    let hex: String = digest(SECRET.as_bytes()).iter().map(|byte| format!("{byte:02X}")).collect();
    let ring = read(&format!("[tenants.a]\nkey_sha256 = [\"{hex}\"]")).unwrap();
    assert!(ring.find(SECRET.as_bytes()).is_some());
    // The digest of "abc" is from FIPS 180-2, appendix B.1.
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let ring = read(&format!("[tenants.a]\nkey_sha256 = \"{abc}\"")).unwrap();
    assert!(ring.find(b"abc").is_some());
    // `sha256sum` and `shasum` name their input, `-` for a pipe, after the digest.
    for printed in [format!("{abc}  -"), format!("{abc} *-"), format!("{abc}  -\\n"), format!("{abc}\\n")] {
        let ring = read(&format!("[tenants.a]\nkey_sha256 = [\"{printed}\"]")).unwrap();
        assert!(ring.find(b"abc").is_some(), "{printed}");
    }
}

#[test]
fn errors_say_the_line_and_never_quote_the_file() {
    for (text, line, wanted) in [
        ("", 1, "the file has no keys"),
        ("[tenants]", 1, "the file has no keys"),
        ("\n[tenants.a\n", 2, "invalid TOML"),
        ("\n\nsk-secret-0123456789 = \"alice\"", 3, "only tables `[tenants.NAME]`"),
        ("\ntenants = \"sk-secret-0123456789\"", 2, "`tenants` must be a table"),
        ("[tenants]\nalice = \"sk-secret-0123456789\"", 2, "a tenant must be a table"),
        ("[tenants.a]\nsk-secret-0123456789 = 1", 2, "unknown name in a tenant's table"),
        ("[tenants.a]\nshare = 1", 1, "this tenant has no keys"),
        ("[tenants.a]\nkeys = [\"sk-secret-01234\"]", 2, "has 15 characters, must have at least 16"),
        ("[tenants.a]\nkeys = [\n\"sk-secret-0123456789\",\n7]", 4, "must be a list of strings"),
        ("[tenants.a]\nkeys = [\"sk-secret-0123456789 \"]", 2, "has a space"),
        ("[tenants.a]\nkey_sha256 = \"sk-secret-0123456789\"", 2, "is not 64 hexadecimal digits"),
        ("[tenants.a]\nkey_sha256 = \"-\"", 2, "is not 64 hexadecimal digits"),
        ("[tenants.a]\nkeys = \"sk-secret-0123456789\"\nshare = 0", 3, "`share` must be an integer"),
        ("[tenants.a]\nkeys = \"sk-secret-0123456789\"\nshare = -1", 3, "`share` must be an integer"),
        ("[tenants.a]\nkeys = \"sk-secret-0123456789\"\nshare = 1.5", 3, "`share` must be an integer"),
        ("[tenants.a]\nrequests_per_minute = 0", 2, "`requests_per_minute` must be an integer from 1"),
        ("[tenants.a]\ntokens_per_minute = \"sk-secret\"", 2, "`tokens_per_minute` must be an integer"),
        ("[tenants.a]\nmax_concurrent_requests = 1e3", 2, "`max_concurrent_requests` must be an integer"),
        ("[tenants.a]\nweight = 0", 2, "`weight` must be an integer"),
        ("[tenants.a]\nmax_priority = \"sk-secret-0123456789\"", 2, "`max_priority` must be `high`"),
        ("[tenants.a]\nadmin = \"sk-secret-0123456789\"", 2, "`admin` must be"),
        ("[tenants.\"a b\"]\nkeys = \"sk-secret-0123456789\"", 1, "a tenant's name must have"),
        ("[tenants.a]\nkeys = \"sk-secret-0123456789\"\nkeys = \"x\"", 3, "a repeated name"),
        (
            "[tenants.a]\nkeys = \"sk-secret-0123456789\"\n[tenants.b]\nkeys = \"sk-secret-0123456789\"",
            4,
            "occurs twice",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.to_string().contains(wanted), "{text}: {error}");
        assert_eq!(error.place.line, line, "{text}: {error}");
        assert!(!error.to_string().contains("sk-secret"), "{error}");
    }
}
