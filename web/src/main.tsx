import { render } from "preact";

import "./tokens.css";
import "./base.css";
import "./app.css";
import { App } from "./app";

const root = document.getElementById("app");
if (root) render(<App />, root);
