// The shape of a generated dashboard in terms of Grafana's own types.
//
// Grafana's enums are string enums, to which the text of a JSON file is not assignable: Plain<T> replaces each enum by
// the texts (or numbers) of its members and leaves the rest of a type as it is.
import type * as dash from "@grafana/schema/dist/types/raw/dashboard/x/types.gen";
import type * as barGauge from "@grafana/schema/dist/types/raw/composable/bargauge/panelcfg/x/types.gen";
import type * as heatmap from "@grafana/schema/dist/types/raw/composable/heatmap/panelcfg/x/types.gen";
import type * as stat from "@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/types.gen";
import type * as stateTimeline from "@grafana/schema/dist/types/raw/composable/statetimeline/panelcfg/x/types.gen";
import type * as table from "@grafana/schema/dist/types/raw/composable/table/panelcfg/x/types.gen";
import type * as timeSeries from "@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen";
import type * as common from "@grafana/schema/dist/types/common/common.gen";

type Plain<T> = T extends string
  ? `${T}`
  : T extends number
    ? `${T}` extends `${infer N extends number}` ? N : number
    : T extends Array<infer U>
      ? Array<Plain<U>>
      : T extends object
        ? { [K in keyof T]: Plain<T[K]> }
        : T;

type Source<Type extends string, Uid extends string> = { type: Type; uid: Uid };
type Prometheus = Source<"prometheus", "${datasource}">;
type Tempo = Source<"tempo", "${tempo_datasource}">;

// The queries are not part of @grafana/schema (they moved into the data source plugins): these are the fields that the
// plugins document.
interface PrometheusTarget {
  datasource: Prometheus;
  editorMode: "code";
  exemplar: boolean;
  expr: string;
  format: "time_series" | "table" | "heatmap";
  instant: boolean;
  legendFormat: string;
  range: boolean;
  refId: string;
}
interface TempoTarget {
  datasource: Tempo;
  filters: [];
  limit: number;
  query: string;
  queryType: "traceql";
  refId: string;
  spss: number;
  tableType: "traces" | "spans";
}

interface Link { targetBlank: boolean; title: string; url: string }

type Properties = {
  [K in "min" | "max" | "decimals" | "custom.width" | "custom.fillOpacity" | "custom.lineWidth"]: { id: K; value: number };
}[
  "min" | "max" | "decimals" | "custom.width" | "custom.fillOpacity" | "custom.lineWidth"
]
  | { id: "unit"; value: string }
  | { id: "color"; value: Plain<dash.FieldColor> }
  | { id: "mappings"; value: Array<Plain<dash.ValueMapping>> }
  | { id: "thresholds"; value: Plain<dash.ThresholdsConfig> }
  | { id: "links"; value: Link[] }
  | { id: "custom.cellOptions"; value: Plain<common.TableCellOptions> }
  | { id: "custom.lineStyle"; value: Plain<common.LineStyle> };

interface Override {
  matcher: { id: "byName" | "byRegexp"; options: string };
  properties: Properties[];
}

type Panel<Type extends string, Options, Custom> = Omit<
  Plain<dash.Panel>, "type" | "options" | "fieldConfig" | "targets" | "datasource"
> & {
  type: Type;
  options: Plain<Options>;
  fieldConfig: {
    defaults: Omit<Plain<dash.FieldConfig>, "custom" | "links"> & { custom?: Plain<Custom>; links?: Link[] };
    overrides: Override[];
  };
  id: number;
  title: string;
  description: string;
  gridPos: Plain<dash.GridPos>;
} & ({ datasource: Prometheus; targets: PrometheusTarget[] } | { datasource: Tempo; targets: TempoTarget[] });

export type AnyPanel =
  | Panel<"timeseries", timeSeries.Options, timeSeries.FieldConfig>
  | Panel<"stat", stat.Options, never>
  | Panel<"heatmap", heatmap.Options, heatmap.FieldConfig>
  | Panel<"bargauge", barGauge.Options, never>
  | Panel<"table", table.Options, table.FieldConfig>
  | Panel<"state-timeline", stateTimeline.Options, stateTimeline.FieldConfig>;

type Row = Omit<Plain<dash.RowPanel>, "panels"> & { panels: AnyPanel[] };

// What the Prometheus plugin adds to an annotation.
type Annotation = Omit<Plain<dash.AnnotationQuery>, "target" | "datasource"> & {
  datasource: Prometheus;
  target: Pick<PrometheusTarget, "datasource" | "editorMode" | "expr" | "refId">;
  tagKeys: string;
  textFormat: string;
  titleFormat: string;
  useValueForTime: boolean;
};

type Variable = Omit<Plain<dash.VariableModel>, "current"> & {
  current?: Plain<dash.VariableOption> | Record<string, never>;
};

export type Board = Omit<Plain<dash.Dashboard>, "panels" | "annotations" | "templating"> & {
  id: null;
  panels: Array<AnyPanel | Row>;
  annotations: { list: Annotation[] };
  templating: { list: Variable[] };
};
