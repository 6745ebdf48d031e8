// A page for React to draw on, where there is no browser. Imported before anything that looks for one.

import { Window } from "happy-dom";

const window = new Window({ url: "http://127.0.0.1/" });
for (const name of ["window", "document", "navigator", "HTMLElement", "Node", "MutationObserver", "sessionStorage"]) {
  const value = name === "window" ? window : window[name];
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}
globalThis.IS_REACT_ACT_ENVIRONMENT = true;
