use trunkline_launcher::listen::Listener;
use trunkline_launcher::ready::{Scheme, banner};

#[test]
fn banner_quotes_the_model_name_for_json_and_shell() {
    let listener = Listener::open("127.0.0.1", 0).unwrap();
    let banner = banner(&listener, Scheme::Https, "it's \"x\"");
    assert_eq!(banner.lines().count(), 2);
    assert_eq!(banner.matches(&format!("https://{}", listener.local())).count(), 2, "{banner}");
    assert!(banner.contains(r#""model":"it'\''s \"x\"""#), "{banner}");
}
