// Reads a JSON list of TraceQL queries from standard input; prints, for each, where it does not parse (null: it does)
// and the span attributes it names.
import { parser } from "@grafana/lezer-traceql";

let text = "";
for await (const chunk of process.stdin) text += chunk;

const found = JSON.parse(text).map((query) => {
  let error = null;
  const attributes = [];
  parser.parse(query).iterate({
    enter(node) {
      if (node.type.isError && error === null) error = node.from;
      if (node.name === "AttributeField") attributes.push(query.slice(node.from, node.to));
    },
  });
  return { error, attributes };
});
process.stdout.write(JSON.stringify(found));
