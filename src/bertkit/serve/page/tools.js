/**
 * The tools in the order of their tabs. Each is an object:
 *   name, title, lead (what it does), ability (what a model must be able to), needs (said without one)
 *   verb       on the button, if it is not the title
 *   suits      (model) => whether it was made for this: the first such is taken before others
 *   fields     what is typed: see form.js
 *   examples   values for the fields; `called` names an example whose first field is long
 *   live       false: it does not ask while one types
 *   wanting    (values, model) => a sentence when there is nothing to ask yet
 *   ask        async (values, model, send, tell) => what was found; send(path, body) gives the server's reply
 *   draw       (found, values, panel) => {nodes, said}: what to show, and one sentence for those who listen
 */

import { compare } from "./compare.js";
import { fill } from "./fill.js";
import { inside } from "./inside.js";
import { inspect } from "./inspect.js";
import { search } from "./search.js";
import { TASK_TOOLS } from "./task_tools.js"; // made by the server: the `tool` of each task's module, in their order

const ALL = [fill, ...TASK_TOOLS, compare, search, inspect, inside];

export const TOOLS = ALL.map((tool) => ({ verb: tool.title, live: true, ...tool }));
