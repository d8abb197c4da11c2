// What polldoctor prints, its command line, and its exit codes.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "polldoctor/bundle.hpp"
#include "polldoctor/doctor_options.hpp"
#include "polldoctor/findings_json.hpp"
#include "polldoctor/findings_text.hpp"
#include "polldoctor/run_program.hpp"
#include "polldoctor_host.hpp"

namespace pollcore::doctor {
namespace {

/// A host on which much is wrong.
void spoil(const FakeHost& host) {
    host.write(good_host());
    host.write({{"/sys/devices/system/cpu/isolated", "\n"},
                {"/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n"},
                {"/sys/class/infiniband/mlx5_0/device/config", std::nullopt},
                {"/proc/swaps", "Filename Type Size Used\n/" + std::string(300, 'x') + " file 9 0\n"},
                {"/sys/class/dmi/id/sys_vendor", "evil\x1b[2J\xff\n"},
                {"/proc/cpuinfo", "flags : tsc constant_tsc nonstop_tsc hypervisor\n"}});
}

struct Report {
    std::string text;
    std::string all;
    nlohmann::json json;
    std::vector<Finding> findings;
};

Report report_of(const FakeHost& host, const std::string& config) {
    const Tree now(host.root());
    const Tree later(host.root() / kLaterDirectory);
    std::ofstream(host.root() / "config.toml") << config;
    const WantedConfig wanted = wanted_config(host.root() / "config.toml", true, now);
    const Facts facts(now, &later, &*wanted.config, "config.toml", wanted.refused);
    Report report{.findings = judge(facts)};
    report.text = findings_text(facts, report.findings, false);
    report.all = findings_text(facts, report.findings, true);
    report.json = nlohmann::json::parse(findings_json(facts, report.findings));
    return report;
}

TEST(PolldoctorText, FitsIn120ColumnsAndHarmsNoTerminal) {
    FakeHost host;
    spoil(host);
    const Report report = report_of(host, kGoodConfig);
    std::istringstream lines(report.all);
    for (std::string line; std::getline(lines, line);) {
        EXPECT_LE(line.size(), 120u) << line;
        EXPECT_TRUE(std::all_of(line.begin(), line.end(), [](unsigned char c) { return c >= 0x20 && c < 0x7f; }))
            << line;
    }
}

TEST(PolldoctorText, BeginsWithTheWorstAndNamesWhatIsOk) {
    FakeHost host;
    spoil(host);
    const Report report = report_of(host, kGoodConfig);
    const std::size_t fault = report.text.find("fault    port-state");
    const std::size_t warning = report.text.find("warning  isolated-core");
    const std::size_t note = report.text.find("note     relaxed-ordering");
    const std::size_t ok = report.text.find("ok       configuration");
    ASSERT_NE(ok, std::string::npos) << report.text;
    EXPECT_LT(fault, warning);
    EXPECT_LT(warning, note);
    EXPECT_LT(note, ok);
    EXPECT_NE(report.text.find("not there"), std::string::npos);
    EXPECT_EQ(report.text.find("ok       hugepages "), std::string::npos);
    EXPECT_NE(report.all.find("ok       hugepages "), std::string::npos);
    EXPECT_NE(report.text.find("faults: 1, warnings: 2,"), std::string::npos) << report.text;
}

TEST(PolldoctorText, SaysOnceWhatIsTheSameOfSeveralCores) {
    FakeHost host;
    spoil(host);
    const std::string text = report_of(host, kGoodConfig).text;
    EXPECT_NE(text.find("worker0, CPU 2; worker1, CPU 3"), std::string::npos) << text;
    EXPECT_EQ(text.find("isolated-core"), text.rfind("warning  isolated-core") + 9);
}

TEST(PolldoctorText, HasTheRoundTripsAsAMatrix) {
    FakeHost host;
    host.write(good_host());
    EXPECT_NE(report_of(host, kGoodConfig)
                  .text.find("           2     3\n"
                             "     2     -    60\n"
                             "     3    60     -\n"),
              std::string::npos);
}

TEST(PolldoctorJson, HasAllOfEachFinding) {
    FakeHost host;
    spoil(host);
    const Report report = report_of(host, kGoodConfig);
    EXPECT_EQ(report.json["severity"], "fault");
    EXPECT_EQ(report.json["workers"][1]["core"], 3);
    EXPECT_EQ(report.json["checks"].size(), all_checks().size());
    EXPECT_EQ(report.json["round_trips_ns"][0]["ns"], 60.5);
    EXPECT_NEAR(report.json["sample_seconds"].get<double>(), 2, 1e-9);
    ASSERT_EQ(report.json["findings"].size(), report.findings.size());
    for (std::size_t i = 0; i < report.findings.size(); ++i) {
        const Finding& finding = report.findings[i];
        const nlohmann::json& json = report.json["findings"][i];
        EXPECT_EQ(json["id"], finding.id);
        EXPECT_EQ(json["severity"], name_of(finding.severity));
        EXPECT_EQ(json["judged"], finding.judged);
        EXPECT_EQ(json["certainty"], finding.sure ? "sure" : "guess");
        EXPECT_EQ(json["source"], finding.source);
        EXPECT_EQ(json["cost"]["text"], finding.cost.text);
        EXPECT_EQ(json["mend"]["text"], finding.mend);
        EXPECT_EQ(json["mend"]["commands"].size(), finding.commands.size());
        EXPECT_EQ(json["about"].contains("core"), finding.about.core.has_value());
    }
    const auto isolated = std::find_if(report.json["findings"].begin(), report.json["findings"].end(),
                                       [](const auto& each) { return each["id"] == "isolated-core"; });
    EXPECT_EQ((*isolated)["cost"]["basis"], "measured");
    EXPECT_EQ((*isolated)["mend"]["commands"][0]["when"], "boot");
    EXPECT_EQ((*isolated)["mend"]["commands"][0]["command"], "isolcpus=managed_irq,domain,2-3");
}

TEST(PolldoctorBundle, HasWhatWasReadButNoSecrets) {
    FakeHost host;
    host.write(good_host());
    host.write({{"/proc/cmdline", "quiet isolcpus=2-3 rd.luks.key=hunter2\n"}});
    std::ofstream(host.root() / "config.toml") << "# hunter2\n" << kGoodConfig;
    const Tree now(host.root());
    const Tree later(host.root() / kLaterDirectory);
    const WantedConfig wanted = wanted_config(host.root() / "config.toml", true, now);
    const Facts facts(now, &later, &*wanted.config, (host.root() / "config.toml").string(), wanted.refused);
    const std::vector<Finding> findings = judge(facts);
    const std::filesystem::path file = host.root() / "report.tar.gz";
    write_bundle(file, facts, later, {.json = findings_json(facts, findings), .text = "the findings"});

    const auto packed = [&](const std::string& name) {
        return output_of({"/bin/tar", "-xOzf", file.string(), "report/" + name}, std::chrono::minutes(1), 1 << 20);
    };
    EXPECT_EQ(packed("host/proc/cmdline"), "quiet isolcpus=2-3 rd.luks.key=...\n");
    EXPECT_EQ(packed("host/later/proc/uptime"), "1002.00 900.00\n");
    EXPECT_EQ(packed("findings.txt"), "the findings");
    EXPECT_EQ(packed("configuration.toml"), "\n" + std::string(kGoodConfig));
    EXPECT_NE(packed("effective.toml").find("verbs_name = \"mlx5_0\""), std::string::npos);
    EXPECT_EQ(output_of({"/bin/tar", "-xOzf", file.string()}, std::chrono::minutes(1), 64 << 20).find("hunter2"),
              std::string::npos);
}

TEST(PolldoctorSeverity, IsThatOfTheWorstFinding) {
    EXPECT_EQ(worst_of({}), Severity::ok);
    EXPECT_EQ(worst_of({{.severity = Severity::note}, {.severity = Severity::warning}, {.severity = Severity::ok}}),
              Severity::warning);
}

TEST(PolldoctorIds, AreKebabCaseAndUnique) {
    std::set<std::string_view> ids;
    for (const Check& check : all_checks()) {
        EXPECT_TRUE(ids.insert(check.id).second) << check.id;
        EXPECT_EQ(check.id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string_view::npos)
            << check.id;
    }
}

TEST(PolldoctorOptions, AreRead) {
    const char* const words[] = {"polldoctor", "-c", "x.toml", "--json", "--disturb", "--bundle", "b.tar.zst"};
    const ParsedOptions parsed = parse_options(7, words);
    ASSERT_TRUE(parsed.options);
    EXPECT_EQ(parsed.options->config_file, "x.toml");
    EXPECT_TRUE(parsed.options->config_given);
    EXPECT_TRUE(parsed.options->json);
    EXPECT_TRUE(parsed.options->disturb);
    EXPECT_EQ(parsed.options->bundle, "b.tar.zst");
    const char* const none[] = {"polldoctor"};
    EXPECT_FALSE(parse_options(1, none).options->config_given);
    EXPECT_EQ(parse_options(1, none).options->root, "/");
}

TEST(PolldoctorOptions, AreRefused) {
    const std::vector<std::vector<const char*>> wrong{{"polldoctor", "--colour"},
                                                      {"polldoctor", "--bundle", "b.zip"},
                                                      {"polldoctor", "--root", "/no/such/directory"},
                                                      {"polldoctor", "--root", "/", "--disturb"},
                                                      {"polldoctor", "--root", "/", "--bundle", "b.tar.gz"}};
    for (const auto& words : wrong) {
        testing::internal::CaptureStderr();
        const ParsedOptions parsed = parse_options(static_cast<int>(words.size()), words.data());
        EXPECT_FALSE(testing::internal::GetCapturedStderr().empty());
        EXPECT_FALSE(parsed.options) << words.back();
        EXPECT_EQ(parsed.exit_code, kExitUsage) << words.back();
    }
}

}  // namespace
}  // namespace pollcore::doctor
