#include "findings_json.hpp"

#include <nlohmann/json.hpp>

#include "checks.hpp"
#include "pollcore/version.hpp"

namespace pollcore::doctor {
namespace {

using Json = nlohmann::ordered_json;

Json of(const About& about) {
    Json json = Json::object();
    if (!about.worker.empty()) {
        json["worker"] = about.worker;
    }
    if (about.core) {
        json["core"] = *about.core;
    }
    if (!about.device.empty()) {
        json["device"] = about.device;
    }
    return json;
}

std::string_view name_of(Cost::Basis basis) {
    switch (basis) {
        case Cost::Basis::none: return "not measured";
        case Cost::Basis::measured: return "measured";
        case Cost::Basis::stated: return "stated";
    }
    return "?";
}

Json of(const Finding& finding) {
    Json commands = Json::array();
    for (const Command& command : finding.commands) {
        commands.push_back({{"when", doctor::name_of(command.when)}, {"command", command.text}});
    }
    return {{"id", finding.id},
            {"about", of(finding.about)},
            {"severity", doctor::name_of(finding.severity)},
            {"judged", finding.judged},
            {"certainty", finding.sure ? "sure" : "guess"},
            {"seen", finding.seen},
            {"source", finding.source},
            {"cost", {{"text", finding.cost.text}, {"basis", name_of(finding.cost.basis)}}},
            {"mend", {{"text", finding.mend}, {"commands", std::move(commands)}}}};
}

}  // namespace

std::string findings_json(const Facts& facts, const std::vector<Finding>& findings) {
    Json json = {{"program", "polldoctor"}, {"version", POLLCORE_VERSION}, {"format", 1}};
    json["severity"] = doctor::name_of(worst_of(findings));
    json["configuration"] = facts.config() != nullptr ? Json(facts.config_file()) : Json(nullptr);
    json["root"] = facts.now().root().string();
    json["sample_seconds"] = facts.seconds();
    json["kernel"] = facts.now().line("/proc/version").value_or("");
    json["workers"] = Json::array();
    for (const JudgedWorker& worker : facts.workers()) {
        json["workers"].push_back({{"name", worker.name}, {"core", worker.core}});
    }
    json["checks"] = Json::array();
    for (const Check& check : all_checks()) {
        json["checks"].push_back({{"id", check.id}, {"judges", check.judges}});
    }
    json["findings"] = Json::array();
    for (const Finding& finding : findings) {
        json["findings"].push_back(of(finding));
    }
    json["round_trips_ns"] = Json::array();
    for (const auto& [a, b] : round_trip_pairs(facts)) {
        if (const auto ns = asked_number(facts.now(), round_trip_file(a, b), "typical_ns")) {
            json["round_trips_ns"].push_back({{"cores", {a, b}}, {"ns", *ns}});
        }
    }
    // Files of the host may have bytes that are no UTF-8.
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace pollcore::doctor
