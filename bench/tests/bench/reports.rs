//! Reports: what is written can be read, and a page needs nothing else.

use trunkline_bench::report::plot::{Plot, Series, escape};
use trunkline_bench::report::{Report, compare, html, table};

use crate::fake::{Fake, Reply, as_asked};
use crate::whole;

async fn two_loads() -> Report {
    let server = Fake::start(|number, body| match number {
        4 => Reply::Status(500, "<b>broken & bent</b>"),
        _ => as_asked(body),
    })
    .await;
    let flags = ["--requests", "4", "--concurrency", "1,2", "--input-tokens", "4", "--goodput", "ttft:9000"];
    whole::report(&server, &flags).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_is_read_as_it_was_written() {
    let report = two_loads().await;
    assert_eq!(Report::parse("x", &report.to_json()).unwrap(), report);
    let other = report.to_json().replacen("\"schema\":1", "\"schema\":2", 1);
    let error = Report::parse("x", &other).unwrap_err().to_string();
    assert!(error.starts_with("`x` is no result of `trunkline bench`: its `schema` is 2"), "{error}");
    assert!(Report::parse("x", "{}").is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_name_loads_and_failures() {
    let report = two_loads().await;
    let text = table::load(&report.loads[0]);
    assert!(text.contains("requests  3 done, 1 failed\n"), "{text}");
    assert!(text.contains("failed    1 × server error: 500 <b>broken & bent</b>\n"), "{text}");
    let overview = table::overview(&report);
    assert!(overview.contains("\nconcurrency 2 "), "{overview}");
    let sides = compare::render(&report, &report);
    assert!(sides.contains("\nconcurrency 1\n") && sides.contains("output tokens/s"), "{sides}");
    assert!(sides.lines().filter(|line| line.ends_with("1.000")).count() >= 20, "{sides}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_has_no_script_and_loads_nothing() {
    let page = html::render(&[two_loads().await]);
    for part in ["<script", "http-equiv=\"refresh", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(page.contains("&lt;b&gt;broken &amp; bent&lt;/b&gt;") && !page.contains("<b>broken"));
    // Four by throughput, four distributions, and three of each load.
    assert_eq!(page.matches("<svg").count(), 4 + 4 + 6);
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plots_of_two_results_are_upon_each_other() {
    let first = two_loads().await;
    let page = html::render(&[first.clone(), first.clone()]);
    // Four by throughput with two lines of each result, and seven of each of two pairs, with a line of each.
    assert_eq!(page.matches("<svg").count(), 4 + 2 * 7);
    assert_eq!(page.matches("</i>A, median</span>").count(), 4);
    assert_eq!(page.matches("</i>B</span>").count(), 2 * 7);
    assert!(page.contains("<h1>A: ") && page.contains("<h1>B: "), "{page}");
    assert!(page.contains("<p>A 1 × server error") && page.contains("<p>B 1 × server error"), "{page}");
    // Loads of which only one result has some are in its table.
    let mut second = first.clone();
    second.loads.remove(0);
    let page = html::render(&[first, second]);
    assert_eq!((page.matches("<svg").count(), page.matches("concurrency 1").count()), (4 + 7, 1));
}

#[test]
fn a_plot_keeps_points_within_its_frame() {
    let points = vec![(0.0, 0.0), (7.3, 120.0), (9.9, 0.3)];
    let series = vec![Series { title: "a<b".to_owned(), points, is_scatter: true }];
    let svg = Plot { title: "t", x: "x", y: "y", series }.render();
    let values = |name: &str| -> Vec<f64> {
        svg.split(name).skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
    };
    let (xs, ys) = (values("cx=\""), values("cy=\""));
    assert!(xs.len() == 3 && xs.iter().all(|x| (56.0..=536.0).contains(x)), "{xs:?}");
    assert!(ys.iter().all(|y| (22.0..=200.0).contains(y)), "{ys:?}");
    let empty = Plot { title: "t", x: "x", y: "y", series: Vec::new() };
    assert_eq!(empty.render(), "");
    assert_eq!(escape("<a href='x'>&\""), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
}

#[test]
fn numbers_have_three_digits() {
    let shown = [0.0, 0.0123, 0.5, 12.34, 123.4, 12345.6, 64.0].map(table::number);
    assert_eq!(shown, ["0", "0.012", "0.50", "12.3", "123", "12346", "64"]);
}
