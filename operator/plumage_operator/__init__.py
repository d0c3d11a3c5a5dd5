"""The Kubernetes operator, on kopf: makes an `InferencePool` into Deployments, Services and what they need, and keeps
them.

Three rings. Pure decisions: `resources`, `status`, `controller.plan`, `controller.gateway_plan`. Thin I/O: `kube`,
`controller.perform`, `autoscaling.report_client`. Thin triggers: `controller.watch`, `controller.reconcile`, `manager`.
import-linter checks the layers of the sub-packages.
"""
