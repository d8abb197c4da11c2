// Runs histories. If one breaks an invariant, prints how to replay it.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "sim/campaign.hpp"
#include "sim/world.hpp"

namespace {

std::string about_worlds() {
    std::string text = "Worlds:\n  all       one after the other, by the history's number\n";
    for (const auto& kind : pollcore::sim::world_kinds()) {
        text += fmt::format("  {:9} {}\n", kind.name, kind.about);
    }
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    using namespace pollcore::sim;
    CLI::App app(
        "Simulates histories of pollcore, each from one number, and checks the design's invariants after every step.");
    app.footer(about_worlds());
    Campaign campaign;
    HistoryOptions replay;
    app.add_option("--seeds", campaign.seeds, "how many histories")->capture_default_str();
    app.add_option("--seconds", campaign.seconds, "stop after so long, however many it were; 0: do not")
        ->capture_default_str();
    app.add_option("--from", campaign.from, "the first one's number")->capture_default_str();
    app.add_option("--steps", campaign.steps, "turns of threads before a history winds down")->capture_default_str();
    app.add_option("--world", campaign.world, "which kind of history")->capture_default_str();
    app.add_option("--jobs", campaign.jobs, "processes")->capture_default_str();
    app.add_flag("--coverage", campaign.print_coverage, "print how often each trouble met a queue pair in each state");
    bool digests = false;
    app.add_flag("--digests", digests, "print a number for each history, which stands for all of its events");
    bool bite = false;
    app.add_flag("--planted", bite, "plant bugs, one after the other, and find each within --seeds histories");
    app.add_flag("--complete", campaign.complete,
                 "go on, up to eight times as many, until each trouble has met queue pairs in every state in which it "
                 "can, and else fail");
    bool fresh = false;
    app.add_flag("--fresh", fresh, "begin with another number each time");
    auto* seed = app.add_option("--replay", replay.seed, "print one history whole");
    app.add_option("--without", replay.without, "with --replay: troubles of its plan that do not happen")
        ->delimiter(',');
    CLI11_PARSE(app, argc, argv);
    try {
        if (fresh) {
            campaign.from =
                static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) / 1000;
        }
        if (*seed) {
            replay.steps = campaign.steps;
            replay.world = campaign.world;
            return print_history(replay);
        }
        if (digests) {
            return print_digests(campaign);
        }
        return bite ? prove_that_it_bites(campaign.seeds, campaign.jobs) : run_campaign(campaign);
    } catch (const std::exception& error) {
        fmt::print(stderr, "simulate: {}\n", error.what());
        return 2;
    }
}
