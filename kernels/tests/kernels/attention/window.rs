use trunkline_kernels::attention::Window;

#[test]
fn rows_together_have_the_same_first_segment_and_the_same_last_block() {
    const BLOCK_SIZE: usize = 64;
    for size in [1, 2, 511, 512, 513, 1024, 5000] {
        let window = Window::new(size).unwrap();
        for window in [window, window.symmetric()] {
            let place = |p| (window.first_segment(p), window.last_visible(p, usize::MAX) / BLOCK_SIZE);
            for position in 0..3000 {
                let same = (position..).take_while(|p| place(*p) == place(position));
                let count = window.rows_together(position, BLOCK_SIZE);
                assert_eq!(count, same.count(), "{window:?}, position {position}");
            }
        }
    }
    assert_eq!(Window::NONE.first_visible(1 << 40), 0);
    assert_eq!(Window::NONE.rows_together(1 << 40, BLOCK_SIZE), BLOCK_SIZE);
    assert_eq!(Window::NONE.symmetric(), Window::ALL);
    assert!(Window::ALL.rows_together(1 << 40, BLOCK_SIZE) > 1 << 60);
    assert_eq!(Window::new(0), None);
}

#[test]
fn a_symmetric_window_sees_as_far_behind_as_before() {
    let window = Window::new(5).unwrap();
    assert_eq!((window.first_visible(10), window.last_visible(10, 99)), (6, 10));
    let window = window.symmetric();
    assert_eq!((window.first_visible(10), window.last_visible(10, 99)), (6, 14));
    assert_eq!(window.last_visible(10, 12), 12);
}
