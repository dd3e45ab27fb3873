// Source and target side by side: what a decoder attends to in the source while it writes each token of the target.

import { HeadView } from "./head_view.js";

export class CrossView extends HeadView {
  static title = "Source";
  static controls = ["layer", "heads"];
  static needs = "source";
  static part = "source"; // its layers are those of this part of the data

  static caption({ state }) {
    const heads = [...state.heads].sort((one, other) => one - other).map((head) => head + 1);
    return `Layer ${state.layer + 1}, ${heads.length === 1 ? "head" : "heads"} ${heads.join(", ")}: what each written word looks at in the source`;
  }

  constructor(app) {
    const { written, tokens } = app.data.source;
    super(app, { left: written, right: tokens }, ["written", "source"]);
  }

  visible(tokens) { return [...tokens.keys()]; }
  allowed() { return true; }
}
