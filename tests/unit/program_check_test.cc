// pollcore-run --check.
#include "pollcore-run/program_check.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include <gtest/gtest.h>

namespace pollcore::run {
namespace {

const std::set<std::string> kServed = {"ibv_create_qp", "_ibv_query_gid_ex"};

TEST(ProgramCheck, AFunctionIsServedPassedOnOrImpossible) {
    EXPECT_EQ(fate_of("ibv_create_qp", kServed), Fate::served);
    EXPECT_EQ(fate_of("_ibv_query_gid_ex", kServed), Fate::served);
    EXPECT_EQ(fate_of("ibv_wc_status_str", kServed), Fate::passed_on);
    EXPECT_EQ(fate_of("rdma_connect", kServed), Fate::passed_on);
    EXPECT_EQ(fate_of("mlx5dv_is_supported", kServed), Fate::passed_on) << "the program asks, and takes another way";
    EXPECT_EQ(fate_of("mlx5dv_init_obj", kServed), Fate::impossible);
    EXPECT_EQ(fate_of("efadv_create_qp_ex", kServed), Fate::impossible);
    EXPECT_EQ(fate_of("ibv_import_pd", kServed), Fate::impossible);
}

TEST(ProgramCheck, AProgramThatCannotBeSeenIsTold) {
    const auto folder = std::filesystem::path(testing::TempDir());
    const auto script = folder / "program_check_script";
    std::ofstream(script) << "#!/bin/sh\n";
    EXPECT_EQ(obstacle_of(script), Obstacle::no_elf);
    EXPECT_EQ(obstacle_of("/proc/self/exe"), Obstacle::none);
    const auto privileged = folder / "program_check_privileged";
    std::filesystem::copy_file("/proc/self/exe", privileged, std::filesystem::copy_options::overwrite_existing);
    ASSERT_EQ(::chmod(privileged.c_str(), S_ISUID | 0755), 0);
    EXPECT_EQ(obstacle_of(privileged), Obstacle::has_privileges);
    std::filesystem::remove(privileged);
    std::filesystem::remove(script);
    EXPECT_THROW((void)obstacle_of(folder / "program_check_nowhere"), std::runtime_error);
}

TEST(ProgramCheck, SymbolsOfAProgramAndItsLibrariesAreFound) {
    const ProgramCheck check = check_program("/usr/bin/ibv_rc_pingpong", {"ibv_open_device"});
    const auto found = std::find_if(check.uses.begin(), check.uses.end(),
                                    [](const Use& one) { return one.symbol == "ibv_open_device"; });
    ASSERT_NE(found, check.uses.end());
    EXPECT_EQ(found->fate, Fate::served);
    EXPECT_EQ(found->user.filename(), "ibv_rc_pingpong");
    EXPECT_TRUE(std::none_of(check.uses.begin(), check.uses.end(), [](const Use& one) {
        return one.user.filename().string().starts_with("libibverbs");
    })) << "libibverbs itself is no user";
}

}  // namespace
}  // namespace pollcore::run
