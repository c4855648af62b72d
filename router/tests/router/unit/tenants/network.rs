use trunkline_base::tenants::ClientNetwork;

#[test]
fn an_ipv6_client_is_known_by_the_first_half_of_its_address() {
    for (address, network) in [
        ("192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
    ] {
        assert_eq!(ClientNetwork::of(address.parse().unwrap()).to_string(), network, "{address}");
    }
}
