export function ServerView() {
  return <main class="note">This view is empty so far.</main>;
}
