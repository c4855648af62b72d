use trunkline_kernels::attention::Window;

#[test]
fn rows_together_have_the_same_first_segment() {
    for size in [1, 2, 511, 512, 513, 1024, 5000] {
        let window = Window::new(size).unwrap();
        for position in 0..3000 {
            let same =
                (position..).take_while(|p| window.first_segment(*p) == window.first_segment(position));
            assert_eq!(window.rows_together(position), same.count(), "window {size}, position {position}");
        }
    }
    assert_eq!(Window::NONE.first_visible(1 << 40), 0);
    assert!(Window::NONE.rows_together(1 << 40) > 1 << 60);
    assert_eq!(Window::new(0), None);
}
