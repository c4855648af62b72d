export function ChatView() {
  return <main class="note">Chat</main>;
}
