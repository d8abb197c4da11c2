#include "json.hpp"

#include <nlohmann/json.hpp>

#include "harmless.hpp"

namespace pollcore::stat {
namespace {

using Json = nlohmann::ordered_json;
using statistics::Kind;

Json runtime_of(const statistics::Snapshot& snapshot) {
    const statistics::Header& header = snapshot.header;
    return {{"name", name_of(snapshot)}, {"pid", header.pid},
            {"uid", header.uid},         {"alive", snapshot.alive},
            {"began_ns", header.began},  {"updated_ns", header.updated},
            {"updates", header.updates}, {"cycles_per_second", header.cycles_per_second}};
}

}  // namespace

std::string json_of(const statistics::Snapshot& snapshot) {
    Json tables = Json::object();
    for (const statistics::ReadTable& table : snapshot.tables) {
        Json rows = Json::array();
        for (const statistics::ReadRow& row : table.rows) {
            Json one = Json::object();
            for (std::size_t i = 0; i < table.fields.size(); ++i) {
                const std::string name = harmless(table.fields[i].name);
                if (table.fields[i].kind == Kind::text) {
                    one[name] = harmless(row.texts[i]);
                } else if (row.words[i].size() != 1) {
                    one[name] = row.words[i];
                } else {
                    one[name] = row.words[i][0];
                }
            }
            rows.push_back(std::move(one));
        }
        tables[harmless(table.name)] = std::move(rows);
    }
    return Json{{"runtime", runtime_of(snapshot)}, {"tables", std::move(tables)}}.dump();
}

std::string list_json(const std::vector<Found>& all) {
    Json list = Json::array();
    for (const Found& each : all) {
        Json one = each.error.empty() ? runtime_of(each.snapshot) : Json{{"error", harmless(each.error)}};
        one["file"] = harmless(each.file.native());
        list.push_back(std::move(one));
    }
    return list.dump();
}

}  // namespace pollcore::stat
