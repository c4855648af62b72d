// Prism reads this before it starts. Without it, Prism would search the page for code and change it.
Object.assign(window, { Prism: { manual: true, disableWorkerMessageHandler: true } });
