// tools/deploy/kubernetes.yaml against the schemas of Kubernetes' own OpenAPI, as the npm package kubernetes-models has them.
//   node kubernetes.mjs FOLDER_WITH_NODE_MODULES MANIFEST
// Prints "ok   WHAT" or "FAIL WHAT" for each document, with what is wrong; a line "json DOCUMENTS" for test_kubernetes.py.
import { readFileSync } from "node:fs";
const [folder, manifest] = process.argv.slice(2);
const of = (file) => import(`file://${folder}/node_modules/${file}`);
const yaml = await of("js-yaml/dist/js-yaml.mjs");
const kinds = {
  "apps/v1/StatefulSet": (await of("kubernetes-models/apps/v1/StatefulSet.js")).StatefulSet,
  "v1/Service": (await of("kubernetes-models/v1/Service.js")).Service,
};
const documents = yaml.loadAll(readFileSync(manifest, "utf8"));
for (const document of documents) {
  const name = `${document.apiVersion}/${document.kind}`;
  try {
    new kinds[name](document).validate();
    console.log(`ok   ${name} ${document.metadata.name} is valid`);
  } catch (error) {
    console.log(`FAIL ${name} ${document.metadata?.name}: ${error.message}`);
  }
}
// The checker sees a mistake where there is one.
const wrong = structuredClone(documents.find((d) => d.kind === "StatefulSet"));
wrong.spec.template.spec.containers[0].readinessProbe.periodSeconds = "often";
try {
  new kinds["apps/v1/StatefulSet"](wrong).validate();
  console.log("FAIL a mistake is not seen");
} catch {
  console.log("ok   a mistake is seen");
}
console.log("json " + JSON.stringify(documents));
