package jetblock.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The Python source {@code jetblock}, planned once for each scan, with the columns and under the filters of only that
 * scan.
 *
 * <p>Spark's own wrapper of a Python source reads all columns, keeps the plan made under one scan's filters for all
 * scans of the relation, and refuses tables of a catalogue. This class passes the wanted columns to Spark's wrapper,
 * and makes a new wrapper for each scan. Rows come from Python as before; only the driver needs this class. docs/adr/0005
 * has the reasons.
 */
public final class JetblockSource implements TableProvider, DataSourceRegister {
  /** How the Python source is registered. */
  private static final String NAME = "jetblock";

  /**
   * The source's name in queries; {@code jetblock pipeline jar --name} replaces it. If Python's source has the same name,
   * Spark prefers this class.
   */
  private static final String SHORT_NAME = "jetblock";

  /** What catalogues and Spark itself put among a table's properties. */
  private static final Set<String> NOT_OURS =
      Set.of("provider", "owner", "location", "path", "is_managed_location", "external", "comment", "collation",
          "serialization.format");

  @Override
  public String shortName() {
    return SHORT_NAME;
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return python().inferSchema(new CaseInsensitiveStringMap(ours(options.asCaseSensitiveMap())));
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new JetblockTable(schema, ours(properties));
  }

  private static PythonDataSourceV2 python() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(NAME);
    return source;
  }

  private static Map<String, String> ours(Map<String, String> properties) {
    Map<String, String> options = new HashMap<>();
    properties.forEach((name, value) -> {
      // A catalogue keeps each option twice, once with this prefix.
      if (!name.startsWith("option.") && !NOT_OURS.contains(name)) {
        options.put(name, value);
      }
    });
    return options;
  }

  private static final class JetblockTable implements SupportsRead, SupportsWrite {
    private final StructType schema;
    private final Map<String, String> options;

    JetblockTable(StructType schema, Map<String, String> options) {
      this.schema = schema;
      this.options = options;
    }

    @Override
    public StructType schema() {
      return schema;
    }

    @Override
    public String name() {
      return NAME + " " + options.entrySet().stream()
          .filter(one -> one.getKey().equalsIgnoreCase("stream")).map(Map.Entry::getValue).findFirst().orElse("");
    }

    @Override
    public Set<TableCapability> capabilities() {
      // Truncating is for the modes overwrite and complete: Python refuses them with the remedy.
      return Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_WRITE,
          TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap more) {
      Map<String, String> all = new HashMap<>(new CaseInsensitiveStringMap(options).asCaseSensitiveMap());
      all.putAll(ours(more.asCaseSensitiveMap()));
      return new JetblockScanBuilder(schema, all);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new PythonWriteBuilder(python(), NAME, new LogicalWriteInfo() {
        @Override
        public CaseInsensitiveStringMap options() { // a catalogue's table has its own besides those of the write
          Map<String, String> all = new HashMap<>(new CaseInsensitiveStringMap(options).asCaseSensitiveMap());
          info.options().asCaseSensitiveMap().forEach((name, value) -> {
            all.keySet().removeIf(name::equalsIgnoreCase);
            all.put(name, value);
          });
          return new CaseInsensitiveStringMap(all);
        }

        @Override
        public String queryId() {
          return info.queryId();
        }

        @Override
        public StructType schema() {
          return info.schema();
        }
      });
    }
  }

  private static final class JetblockScanBuilder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
    private final StructType schema;
    private final Map<String, String> options;
    private StructType wanted;
    private Filter[] asked = {};
    private Filter[] pushed = {};

    JetblockScanBuilder(StructType schema, Map<String, String> options) {
      this.schema = schema;
      this.options = options;
      this.wanted = schema;
    }

    @Override
    public Filter[] pushFilters(Filter[] filters) {
      boolean off = "false".equalsIgnoreCase(new CaseInsensitiveStringMap(options).get("pushdown"));
      if (off || filters.length == 0 || !SQLConf.get().pythonFilterPushDown()) {
        return filters;
      }
      // Spark asks now which filters Python applies, and gives the columns later: so Python is called twice
      // and plans once.
      PythonScanBuilder trial = scanBuilder(schema, Map.of("pushdown", "true", "planned", "false"));
      Filter[] left = trial.pushFilters(filters);
      asked = filters;
      pushed = trial.pushedFilters();
      return left;
    }

    @Override
    public Filter[] pushedFilters() {
      return pushed;
    }

    @Override
    public void pruneColumns(StructType required) {
      wanted = required;
    }

    @Override
    public Scan build() {
      List<String> names = Arrays.asList(schema.fieldNames());
      if (wanted.isEmpty()) { // count() wants rows without columns: the cheapest one makes them
        wanted = wanted.add(schema.apply(names.contains("seq") ? "seq" : names.get(0)));
      }
      if (asked.length == 0) {
        return scanBuilder(wanted, Map.of()).build();
      }
      // Python recognises filters only by columns of the schema that it reads.
      for (Filter filter : asked) {
        for (String name : filter.references()) {
          if (names.contains(name) && !Arrays.asList(wanted.fieldNames()).contains(name)) {
            wanted = wanted.add(schema.apply(name));
          }
        }
      }
      PythonScanBuilder builder = scanBuilder(wanted, Map.of("pushdown", "true"));
      builder.pushFilters(asked);
      return builder.build();
    }

    private PythonScanBuilder scanBuilder(StructType columns, Map<String, String> more) {
      Map<String, String> all = new HashMap<>(options);
      all.keySet().removeIf(name -> more.keySet().stream().anyMatch(name::equalsIgnoreCase));
      all.putAll(more);
      return new PythonScanBuilder(python(), NAME, columns, new CaseInsensitiveStringMap(all));
    }
  }
}
