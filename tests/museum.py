"""The museum: public reports of silent faults in libraries of this field, and tests of the situations.

`docs/explanation/reliability.md` shows the table, and ``pytest -m museum`` runs the tests.
"""

from __future__ import annotations

from typing import NamedTuple


class Report(NamedTuple):
    """A report, the result that its user expected, the result here, and the tests."""

    source: str
    situation: str
    expected: str
    here: str
    tests: tuple[str, ...]
    """``module::function`` of each test."""


REPORTS = (
    Report(
        "torchrec #4525",
        "features of one table with lengths 0 to 3 and 100 to 200",
        "rows of torch",
        "equal",
        ("test_public_reports::test_features_of_one_table_may_have_very_different_lengths",),
    ),
    Report(
        "torchrec #4322",
        "background saves while tables change, evict and expire",
        "rows of the call",
        "equal",
        (
            "test_save::test_a_background_save_contains_one_step_of_all_tables",
            "test_expiry::test_a_running_save_contains_the_rows_of_its_step",
            "test_evicting_last_tier::test_a_load_fills_all_tiers_or_reports_the_rows_that_do_not_fit",
        ),
    ),
    Report(
        "torchrec #4602, pytorch #136457",
        "gradients of weights, also over frozen rows",
        "autograd",
        "equal",
        (
            "test_parity::test_gradient_of_weights_equals_torch",
            "test_public_reports::test_weights_of_frozen_rows_have_gradients",
        ),
    ),
    Report(
        "FBGEMM #5954, #5807",
        "expiry while another thread reads",
        "exact rows",
        "exact",
        ("test_public_reports::test_rows_expire_exactly_while_another_thread_reads",),
    ),
    Report(
        "FBGEMM #5876, HierarchicalKV #203",
        "keys above 2²⁴, 2³², 2⁵³, unsigned and negative",
        "64 bits or an error",
        "exact",
        (
            "values::test_every_int64_is_a_valid_key",
            "test_clear_messages::test_integers_that_do_not_fit_are_named",
            "test_whole_numbers::test_a_whole_number_in_json_is_read_exactly",
            "test_init_files::test_unsigned_ids_of_parquet_files_are_trained",
        ),
    ),
    Report(
        "pytorch #151918",
        "padding −1 and negative ids, compiled",
        "eager result",
        "equal",
        (
            "test_public_reports::test_compiled_lookups_of_negative_ids_and_padding_equal_eager_ones",
        ),
    ),
    Report(
        "FBGEMM #5965",
        "optimizer states of two dims in a stack, saved and loaded",
        "states of one storage",
        "equal",
        ("test_public_reports::test_states_of_tables_with_different_dims_stay_apart_in_a_stack",),
    ),
    Report(
        "recsys-examples #419, #426",
        "dims 1, 7, 16, 33 with own learning rates",
        "rows of torch",
        "equal",
        ("test_public_reports::test_dims_that_are_no_powers_of_two_have_separate_learning_rates",),
    ),
    Report(
        "recsys-examples #468, HierarchicalKV #242",
        "random writes, erases and evictions",
        "a dictionary",
        "equal",
        (
            "machine::test_random_operations_agree_with_a_dict",
            "bounded::test_erased_rows_are_not_returned_as_evicted",
            "writes::test_erased_key_may_be_inserted_again",
        ),
    ),
    Report(
        "recsys-examples #314, torchrec #3751",
        "one pipeline for training and a shortened evaluation",
        "no batch moves",
        "none",
        ("test_train_pipeline::test_a_shortened_evaluation_neither_loses_nor_trains_batches",),
    ),
    Report(
        "recsys-examples pull request #477",
        "versions of a run that restarted at a lower step",
        "served",
        "served",
        ("test_publication_order::test_a_run_with_lower_steps_is_served",),
    ),
    Report(
        "torchrec #4388",
        "gradients clipped by value",
        "elements of torch",
        "equal",
        ("test_row_gradients::test_changes_of_gradients_are_those_of_torch",),
    ),
    Report(
        "pytorch #190063",
        "Adafactor, Muon, LBFGS, `scale_grad_by_freq`",
        "an error",
        "error",
        (
            "test_every_torch_optimizer::test_classes_that_need_whole_matrices_are_rejected_by_name",
            "test_misuse::test_arguments_of_torch_are_explained",
        ),
    ),
    Report(
        "torchrec #2362, #2808, #2251",
        "mean and sum over ids of several ranks",
        "one process",
        "equal",
        (
            "test_owner_pooling::test_collections_train_as_by_rows",
            "test_ranks::test_modules_on_ranks_train_like_one_process",
        ),
    ),
    Report(
        "torchrec #1646, keras-rs #134",
        "order of outputs",
        "declared order",
        "equal",
        ("test_embedding_bag_collection::test_order_of_features_in_the_batch_does_not_matter",),
    ),
    Report(
        "torchrec #4638",
        "batches without examples",
        "empty output",
        "equal",
        ("test_embedding_bag_collection::test_a_batch_without_examples_or_ids_is_accepted",),
    ),
    Report(
        "torchrec #4761, #2546, #2925, #3119",
        "permuted and split batches with shared bags",
        "kept indices and strides",
        "kept",
        (
            "test_keyed_jagged_tensor::test_split_permute_and_concat_move_whole_features",
            "test_keyed_jagged_tensor::test_features_may_differ_in_their_number_of_bags",
        ),
    ),
    Report(
        "torchrec #4459",
        "features with different batch sizes in a dictionary",
        "a clear error",
        "error",
        ("test_keyed_jagged_tensor::test_invalid_input_is_rejected",),
    ),
    Report(
        "torchrec #3132, #4158, #2670",
        "ranks that differ in batches, settings or calls",
        "an error on all",
        "error",
        (
            "test_misuse::test_gradients_that_one_rank_would_lose_are_rejected_on_all",
            "test_different_ranks::test_different_hyper_parameters_are_rejected_on_all_ranks",
        ),
    ),
    Report(
        "torchrec #3922",
        "plans of tiny tables and of impossible jobs",
        "a plan or an error",
        "as expected",
        (
            "test_public_reports::test_tiny_tables_are_planned",
            "test_clear_messages::test_limits_of_the_planner_are_reported_as_errors_of_arguments",
        ),
    ),
    Report(
        "torchrec #1894, #2043",
        "quantized modules",
        "within rounding",
        "within it",
        ("test_inference_module::test_outputs_equal_the_model_up_to_rounding",),
    ),
    Report(
        "FBGEMM #5755",
        "padding to more than 2³¹ elements",
        "all rows",
        "equal",
        ("test_public_reports::test_more_than_two_billion_elements_are_padded",),
    ),
    Report(
        "pytorch #167974",
        "`include_last_offset`",
        "torch",
        "equal",
        ("test_embedding_modules::test_embedding_bag_equals_torch",),
    ),
    Report(
        "pytorch #144657, #138575, Lightning #21079",
        "`async_save` while training continues",
        "rows of the call",
        "equal",
        (
            "test_public_reports::test_an_asynchronous_checkpoint_has_the_rows_of_its_call",
            "test_rows_in_state::test_distributed_checkpoints_keep_rows",
        ),
    ),
    Report(
        "recsys-examples #12",
        "a batch larger than the capacity",
        "each row kept or returned",
        "as expected",
        ("test_eviction::test_every_key_is_stored_or_was_returned_once_as_evicted",),
    ),
    Report(
        "recsys-examples #198",
        "prefetch with eviction and admission",
        "the plain loop",
        "equal bits",
        ("test_train_pipeline::test_results_equal_the_plain_loop",),
    ),
    Report(
        "recsys-examples #175, #282",
        "evaluation without an optimizer; admission after a resume",
        "unchanged rows; kept counts",
        "as expected",
        (
            "test_evaluation_mode::test_validation_with_gradients_enabled_changes_and_keeps_nothing",
            "test_rows_in_state::test_filters_of_admission_are_saved",
        ),
    ),
    Report(
        "TFRA #451",
        "states of other tables, dims or optimizers",
        "an error",
        "error",
        ("test_rows_in_state::test_states_that_do_not_match_are_rejected",),
    ),
    Report(
        "DeepRec #999",
        "chains of full and delta snapshots",
        "newest rows",
        "equal",
        ("test_chain::test_a_chain_reads_as_its_newest_rows",),
    ),
    Report(
        "torchrec's golden training",
        "DLRM on one rank and on two",
        "equal loss",
        "equal",
        (
            "test_train_dlrm::test_one_rank_learns",
            "test_train_dlrm::test_one_rank_and_two_have_the_same_result",
        ),
    ),
    Report(
        "users of `swa_utils`",
        "averages and target networks",
        "averages of torch",
        "equal",
        (
            "test_row_averages::test_each_row_is_averaged_as_by_torch",
            "test_target_networks::test_target_networks_follow_like_dense_ones",
        ),
    ),
)
