"""Models of the custom resources of which no package has one, of as much of them as is used here.

Written after their definitions.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Duration = Annotated[str, Field(pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(m|[KMGT]i)?$")]
Port = Annotated[int, Field(ge=1, le=65_535)]


class Strict(BaseModel):
    """Knows its own fields alone, and takes nothing for another thing."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Resource(Strict):
    apiVersion: str  # noqa: N815 (as Kubernetes writes it)
    kind: str
    metadata: dict[str, Any]


class ParentRef(Strict):
    name: Name
    namespace: Name


class PathMatch(Strict):
    type: Literal["Exact", "PathPrefix", "RegularExpression"]
    value: Annotated[str, Field(pattern="^/", max_length=1_024)]


class Match(Strict):
    path: PathMatch


class BackendRef(Strict):
    name: Name
    port: Port


class Timeouts(Strict):
    request: Duration
    backendRequest: Duration  # noqa: N815


class Rule(Strict):
    matches: Annotated[list[Match], Field(max_length=64)]
    backendRefs: Annotated[list[BackendRef], Field(max_length=16)]  # noqa: N815
    timeouts: Timeouts


class RouteSpec(Strict):
    parentRefs: list[ParentRef]  # noqa: N815
    hostnames: Annotated[list[Name], Field(max_length=16)]
    rules: Annotated[list[Rule], Field(min_length=1, max_length=16)]


class HTTPRoute(_Resource):
    spec: RouteSpec


class Synchronous(Strict):
    method: Literal["any", "first"]
    number: Annotated[int, Field(ge=1)]
    dataDurability: Literal["required", "preferred"]  # noqa: N815


class Postgresql(Strict):
    synchronous: Synchronous
    parameters: dict[str, str]


class SecretRef(Strict):
    name: Name


class InitDb(Strict):
    database: str
    owner: str
    secret: SecretRef
    postInitApplicationSQL: list[str]  # noqa: N815


class Bootstrap(Strict):
    initdb: InitDb


class Role(Strict):
    name: str
    login: bool
    inRoles: list[str]  # noqa: N815
    passwordSecret: SecretRef  # noqa: N815


class Managed(Strict):
    roles: list[Role]


class Storage(Strict):
    size: Quantity


class Amounts(Strict):
    cpu: Quantity | None = None
    memory: Quantity


class Resources(Strict):
    requests: Amounts
    limits: Amounts


class ClusterSpec(Strict):
    instances: Annotated[int, Field(ge=1)]
    postgresql: Postgresql
    bootstrap: Bootstrap
    managed: Managed
    storage: Storage
    walStorage: Storage  # noqa: N815
    resources: Resources


class Cluster(_Resource):
    spec: ClusterSpec
